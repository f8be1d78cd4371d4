"""The `pairs` format: lines such as `id=1;name=anna`."""

from icestream.contracts.decoder import Decoder, Format, FormatSettings
from icestream.formats.rows import RowDecoder


class PairsDecoder(RowDecoder):
    """Decodes lists of pairs."""

    def parse(self, value: bytes) -> dict[str, str]:
        """Return the fields of one line; a `ValueError` makes it a bad record."""
        fields: dict[str, str] = {}
        for pair in value.decode().split(";"):
            name, equals, text = pair.partition("=")
            if not name or not equals:
                raise ValueError(f"{pair!r} is not name=value")
            fields[name] = text
        return fields


class PairsFormat(Format):
    """Lists of pairs."""

    name = "pairs"
    is_line_based = True

    def decoder(self, settings: FormatSettings) -> Decoder:
        """Return the decoder; the format needs no settings."""
        return PairsDecoder()
