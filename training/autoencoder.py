"""The autoencoder in torch: the decoder of the official layout as a 2-D network, and an encoder that is not shipped."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from anima_batch.convert.layouts import CONV_LEVELS, RESIDUALS, VaeDims, vae_shapes

_LOG_VARIANCE_LIMIT = 10.0
_ENCODER_WIDTHS = (32, 64, 96)


class _ChannelNorm(nn.Module):
    """x / sqrt(mean(x²) over channels) · gamma."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        root = torch.rsqrt(x.square().mean(dim=1, keepdim=True) + 1e-12)
        return x * root * self.gamma


class _Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
        # Numbered as the official ones: norm, SiLU, convolution, norm, SiLU, dropout, convolution.
        self.residual = nn.Sequential(
            _ChannelNorm(inputs), nn.SiLU(), first, _ChannelNorm(outputs), nn.SiLU(), nn.Identity(), second
        )
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.residual(x)
        return y + (self.shortcut(x) if hasattr(self, "shortcut") else x)


class _SpatialAttention(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _ChannelNorm(channels)
        self.to_qkv, self.proj = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.to_qkv(self.norm(x)).flatten(2).transpose(1, 2)[:, None].chunk(3, dim=-1)  # (B, 1, h·w, C)
        y = functional.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
        result: Tensor = x + self.proj(y)
        return result


class _Upsampling(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.resample = nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(channels, channels // 2, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.resample(x)
        return y


class Decoder(nn.Module):
    """z (B, 16, h, w) -> (B, 3, 8h, 8w), nominally -1 to 1."""

    def __init__(self, dims: VaeDims) -> None:
        super().__init__()
        widths = [dims.base * units for units in CONV_LEVELS]
        self.conv1 = nn.Conv2d(dims.latent_channels, widths[0], 3, padding=1)
        self.middle = nn.Sequential(
            _Residual(widths[0], widths[0]), _SpatialAttention(widths[0]), _Residual(widths[0], widths[0])
        )
        layers: list[nn.Module] = []
        channels = widths[0]
        for level, width in enumerate(widths[1:]):
            for _ in range(RESIDUALS):
                layers.append(_Residual(channels, width))
                channels = width
            if level < len(widths) - 2:
                layers.append(_Upsampling(width))
                channels = width // 2
        self.upsamples = nn.Sequential(*layers)
        self.head = nn.Sequential(_ChannelNorm(channels), nn.SiLU(), nn.Conv2d(channels, 3, 3, padding=1))

    def forward(self, z: Tensor) -> Tensor:
        """As the class says."""
        y: Tensor = self.head(self.upsamples(self.middle(self.conv1(z))))
        return y


class Encoder(nn.Module):
    """Picture (B, 3, 8h, 8w) -> mean and log variance, (B, 16, h, w) each."""

    def __init__(self, latent_channels: int) -> None:
        super().__init__()
        first, second, third = _ENCODER_WIDTHS
        self.layers = nn.Sequential(
            nn.Conv2d(3, first, 4, stride=2, padding=1),
            _Residual(first, first),
            nn.Conv2d(first, second, 4, stride=2, padding=1),
            _Residual(second, second),
            nn.Conv2d(second, third, 4, stride=2, padding=1),
            _Residual(third, third),
            _Residual(third, third),
            nn.SiLU(),
            nn.Conv2d(third, 2 * latent_channels, 3, padding=1),
        )

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """As the class says."""
        mean, log_variance = self.layers(pictures).chunk(2, dim=1)
        return mean, log_variance.clamp(-_LOG_VARIANCE_LIMIT, _LOG_VARIANCE_LIMIT)


class Autoencoder(nn.Module):
    """Encoder and decoder; `conv2` stands before the decoder as in the official file."""

    def __init__(self, dims: VaeDims) -> None:
        super().__init__()
        self.encoder = Encoder(dims.latent_channels)
        self.conv2 = nn.Conv2d(dims.latent_channels, dims.latent_channels, 1)
        self.decoder = Decoder(dims)

    def forward(self, pictures: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pictures again from a drawn latent, and that latent's mean and log variance."""
        mean, log_variance = self.encoder(pictures)
        return self.decode(mean + torch.exp(log_variance / 2) * noise), mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Pictures (B, 3, 8h, 8w) of latents that are not normalised."""
        y: Tensor = self.decoder(self.conv2(z))
        return y


def official_tensors(weights: Mapping[str, Tensor], dims: VaeDims) -> dict[str, Tensor]:
    """The decoder as the official file has it: 3-D kernels whose last time slice is the trained one, the rest zeros."""
    tensors = {}
    for name, shape in vae_shapes(dims).items():
        tensor = torch.zeros(shape)
        if name in weights:
            flat = weights[name]
            if len(shape) == 5:
                tensor[:, :, -1] = flat
            else:
                tensor.copy_(flat.reshape(shape))
        elif "time_conv" not in name:
            raise KeyError(name)
        tensors[name] = tensor
    return tensors


def psnr(mean_square_error: float) -> float:
    """dB of pictures between -1 and 1."""
    return 10 * math.log10(4 / mean_square_error)
