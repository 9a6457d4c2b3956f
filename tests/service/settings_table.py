"""Prints the table of settings for service/README.md: python -m tests.service.settings_table"""

from quatserve.service.command_line import default_of, flag_of, variable_of
from quatserve.service.settings import Settings


def settings_table() -> str:
    rows = ["| environment | flag | default | what |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        default = f"`{default_of(name)}`" if default_of(name) else ""
        rows.append(f"| `{variable_of(name)}` | `{flag_of(name)}` | {default} | {field.description} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(settings_table(), end="")
