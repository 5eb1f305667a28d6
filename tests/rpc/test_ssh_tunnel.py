"""The tunnel that docs/guide/phones-and-rpc.md recommends, through a real sshd on loopback with separate keys."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

import romou
from romou.cli import main
from romou.runtime.rpc import Address
from support.docs.documents import ROOT
from support.models.small_networks import NetworkBuilder
from support.servers.rpc_servers import answers, free_port, serving, started, wait_for

SSHD = Path("/usr/sbin/sshd")
SSHD_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/client_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
SSH_CONFIG = """
Host machine
  HostName 127.0.0.1
  Port {port}
  IdentityFile {folder}/client_key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  BatchMode yes
"""
RECIPE = (ROOT / "docs/guide/phones-and-rpc.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def ssh_config(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Yield the settings of a client that reaches an sshd as the host "machine"."""
    if not SSHD.exists():
        missing = "no sshd: apt-get install openssh-server"
        (pytest.fail if request.config.getoption("--all-platforms") else pytest.skip)(missing)
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    for name in ("host_key", "client_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(folder / name)], check=True)
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    for name, text in (("sshd_config", SSHD_CONFIG), ("config", SSH_CONFIG)):
        (folder / name).write_text(text.format(port=port, folder=folder))
    if os.getuid() == 0:
        # Root's sshd drops its privileges there. The system's service creates the folder at its start.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with started([str(SSHD), "-D", "-e", "-f", str(folder / "sshd_config")]):
        wait_for(lambda: answers(port))
        yield folder / "config"


def test_tuning_through_the_tunnel_of_the_docs(ssh_config: Path, tmp_path: Path) -> None:
    """The client only has the tunnel's end. The key is in no command line on either side."""
    key_file, here = tmp_path / "key", free_port()
    key_file.touch(mode=0o600)
    key_file.write_text("a-secret-of-this-test\n")
    (command,) = re.findall(r"^ssh .*-L 9090:127\.0\.0\.1:9090 machine$", RECIPE, re.MULTILINE)
    assert re.findall(r"^romou serve --key-file \S+", RECIPE, re.MULTILINE)
    g = NetworkBuilder({"x": (1, 3, 5, 5)})
    model = g.model(g.conv("x", 3, 4))
    with serving(key_from=("--key-file", str(key_file))) as server:
        words = shlex.split(command.replace("9090:127.0.0.1:9090", f"{here}:127.0.0.1:{server.port}"))
        # In the foreground, so that it ends with the test.
        words.remove("-f")
        with started([words[0], "-F", str(ssh_config), *words[1:]]):
            wait_for(lambda: answers(here))
            address = f"127.0.0.1:{here}/@{key_file}"
            tuned = romou.tune(model, target="opencl", rpc=address, trials=1, work_dir=tmp_path / "records")
            assert tuned.summary().is_right
            tuned.release()
            assert all(
                "a-secret-of-this-test" not in " ".join(_command_line(process)) for process in psutil.process_iter()
            )
        # Without the tunnel there is no server.
        result = CliRunner().invoke(main, ["doctor", "--rpc", address])
        assert (result.exit_code, "no TVM RPC server answers" in " ".join(result.output.split())) == (3, True)


def test_keys_of_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell expands the ~ behind an address."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".romou_key").touch(mode=0o600)
    (tmp_path / ".romou_key").write_text("mine")
    assert Address.parse("127.0.0.1:9090/@~/.romou_key").key == "mine"


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
