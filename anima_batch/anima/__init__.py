"""The Anima model: text in, latents out, pixels out."""
