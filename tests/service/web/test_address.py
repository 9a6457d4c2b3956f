"""An unusable host or port is reported in one sentence, before models are loaded."""

import socket

import pytest

from quatserve.service.commands import main
from quatserve.service.errors import AddressError
from quatserve.service.web.address import check_address


def test_a_free_port_passes() -> None:
    check_address("127.0.0.1", 0)


def test_a_port_in_use_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith(f"error: port {port} on 127.0.0.1 is taken")


@pytest.mark.parametrize("host", ["192.0.2.1", "no.such.host.invalid"])
def test_an_unusable_host_is_named(host: str) -> None:
    with pytest.raises(AddressError, match=host):
        check_address(host, 8000)
