"""Write manifest.schema.json anew, beside this file."""

from pathlib import Path

from anima_batch.store.schema import schema_text

if __name__ == "__main__":
    Path(__file__).with_name("manifest.schema.json").write_text(schema_text(), encoding="utf-8")
