"""A small job that is worth comparing: what a forecast, a thrift of guidance and fewer steps make of two prompts."""

from __future__ import annotations

HOSTILE = 'a "green" boat</script><script>alert(1)</script><!-- & {{ 7 * 7 }} \u202e夜'
SETTINGS = 3  # of each prompt in [matrix]; then one that stands alone, and their controls

JOB = f"""
schema_version = 1
name = "compared"
[defaults]
seed = 18446744073709551615
noise = "philox"
[matrix]
prompt = [{{ name = "house", text = "a red house on grass by day" }}, {{ name = "boat", text = '''{HOSTILE}''' }}]
steps = [8, 8, 8]
policy = ["full", "quick", "thrifty"]
zip = [["steps", "policy"]]
[[include]]
prompt = "a cat"
steps = 2
[policy.quick]
kind = "spectrum"
warmup_steps = 2
tail_steps = 1
[policy.thrifty]
kind = "guidance_reuse"
warmup_steps = 2
"""
