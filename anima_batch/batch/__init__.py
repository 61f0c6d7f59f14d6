"""A job in its workspace: the images it asks for, what of them lies on disk, and the plan that follows."""

from anima_batch.batch.decoding import DecodeNeed, find_shortage, write_needs
from anima_batch.batch.embeds import EmbedsFolder
from anima_batch.batch.opening import Batch, open_batch
from anima_batch.batch.pin import Pin, read_pin, write_pin
from anima_batch.batch.planning import checkpoint_bytes, plan_batch
from anima_batch.batch.survey import PNG_BYTES, CheckedImage, Found, check_image, find_dropped, measure, survey

__all__ = [
    "PNG_BYTES",
    "Batch",
    "CheckedImage",
    "DecodeNeed",
    "EmbedsFolder",
    "Found",
    "Pin",
    "check_image",
    "checkpoint_bytes",
    "find_dropped",
    "find_shortage",
    "measure",
    "open_batch",
    "plan_batch",
    "read_pin",
    "survey",
    "write_needs",
    "write_pin",
]
