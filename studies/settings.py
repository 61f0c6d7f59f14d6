"""What is compared: samplers, numbers of steps, schedules and policies, each as a job file can name it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from anima_batch.job import (
    GuidanceReusePolicy,
    ImageRequest,
    Policy,
    Sampler,
    Schedule,
    SpectrumPolicy,
    built_in_policies,
    presets,
)
from anima_batch.sampling import computed_steps, planned_passes

SIZE = (128, 128)  # width and height in pixels
GUIDANCE_SCALE = 4.0

_FORECASTS = {
    "spectrum": SpectrumPolicy(),  # stable-diffusion.cpp's
    "free": SpectrumPolicy(penalize_constant=False),
    "sigma": SpectrumPolicy(coordinate="sigma"),
    "sigma-free": SpectrumPolicy(coordinate="sigma", penalize_constant=False),
    "features": SpectrumPolicy(forecast="features"),
    "features-free": SpectrumPolicy(forecast="features", penalize_constant=False),
    "taylor": SpectrumPolicy(blend=0.0),
    "features-taylor": SpectrumPolicy(forecast="features", blend=0.0),
    "chebyshev": SpectrumPolicy(blend=1.0, ridge_lambda=0.01),
}
_REUSES = {
    f"reuse-{every}-{warmup}": GuidanceReusePolicy(uncond_every=every, warmup_steps=warmup)
    for every in (2, 3, 4)
    for warmup in (2, 4, 6)
}
POLICIES: dict[str, Policy] = {**built_in_policies(), **_FORECASTS, **_REUSES}


@dataclass(frozen=True)
class Setting:
    """One row: the fields of a request that differ between the rows, the policy by its name in POLICIES."""

    sampler: Sampler
    steps: int
    policy: str = "full"
    schedule: Schedule = "simple"

    @property
    def label(self) -> str:
        """Such as `ab2 14 reuse-2-4`: sampler, steps, and what is not the default."""
        words = (self.sampler, str(self.steps), self.policy, self.schedule)
        return " ".join(word for word in words if word not in ("full", "simple"))

    @property
    def passes(self) -> int:
        """The transformer evaluations of one image, as planned."""
        return sum(planned_passes(self.request("", 0)))

    @property
    def board_minutes(self) -> float:
        """Denoising on the RK3588 at 512x512 by its published times: loading once a computed step, and the passes."""
        loading, step = 31.71, 120.43  # seconds; a step has two passes
        loads = len(computed_steps(self.request("", 0)))
        return (loads * loading + self.passes * (step - loading) / 2) / 60

    @property
    def plain_twins(self) -> list[Setting]:
        """Plain sampling by each solver with as many passes, or one more where they are odd."""
        return [replace(self, policy="full", sampler=sampler, steps=-(-self.passes // 2)) for sampler in SAMPLERS]

    def request(self, prompt: str, seed: int) -> ImageRequest:
        """The image of a prompt and a seed under this setting."""
        width, height = SIZE
        return ImageRequest(
            prompt=prompt,
            seed=seed,
            width=width,
            height=height,
            steps=self.steps,
            guidance_scale=GUIDANCE_SCALE,
            schedule=self.schedule,
            sampler=self.sampler,
            policy=POLICIES[self.policy],
        )


SAMPLERS: tuple[Sampler, ...] = ("euler", "ab2", "dpmpp_2m")
EULER_20 = Setting("euler", 20)  # 40 passes: what the others are held against
CONVERGED = Setting("ab2", 200)
EULER_200 = Setting("euler", 200)
REFERENCES = (EULER_20, CONVERGED, EULER_200)
FINEST = (EULER_20, EULER_200, CONVERGED, Setting("dpmpp_2m", 200))

PLAIN = [Setting(sampler, steps) for sampler in SAMPLERS for steps in (6, 7, 8, 9, 10, 11, 12, 14, 16, 20, 28, 50)]
FORECASTS = [Setting("euler", steps, policy) for steps in (20, 28) for policy in _FORECASTS]
_SEARCHED = [Setting("ab2", steps, policy) for steps in range(8, 16) for policy in _REUSES]
_SEARCHED += [replace(setting, sampler="dpmpp_2m") for setting in _SEARCHED if setting.policy.startswith("reuse-2")]
SEARCHED = [setting for setting in _SEARCHED if setting.passes < 2 * setting.steps]
REUSES = [
    *(Setting("euler", steps, policy) for steps in (14, 20) for policy in ("reuse-2-4", "reuse-3-4")),
    *(setting for setting in SEARCHED if setting.policy == "reuse-2-4" and setting.steps >= 10),
]
SCHEDULES = [
    replace(setting, schedule=schedule)
    for setting in (EULER_20, Setting("ab2", 12), Setting("dpmpp_2m", 12))
    for schedule in ("simple", "discrete", "sgm_uniform", "normal", "beta")
]

ALL = [*FINEST, *PLAIN, *FORECASTS, *REUSES, *SEARCHED, *SCHEDULES]

# Looked at on other prompts as well: plain sampling, stable-diffusion.cpp's forecast and its best variation, and for
# each number of passes the nearest of CONTENDERS.
CHECKED = [
    EULER_20,
    *(Setting("ab2", steps) for steps in range(9, 15)),
    *(Setting(sampler, 11) for sampler in SAMPLERS),
    *(Setting("euler", 20, policy) for policy in ("spectrum", "taylor")),
]
CONTENDERS = [setting for setting in SEARCHED if 18 <= setting.passes <= 24]


def find_preset(name: str) -> Setting:
    """A built-in preset as a setting."""
    preset = presets()[name]
    return Setting(preset.sampler, preset.steps, preset.policy)


def spell_policies(names: Iterable[str]) -> str:
    """The policies as tables of a job file, TOML; those that are built in need none."""
    tables = []
    for name in dict.fromkeys(names):
        if name not in built_in_policies():
            fields = {"kind": POLICIES[name].kind, **POLICIES[name].model_dump(exclude_unset=True)}
            tables.append("\n".join([f"[policy.{name}]", *(f"{key} = {json.dumps(v)}" for key, v in fields.items())]))
    return "\n\n".join(tables)
