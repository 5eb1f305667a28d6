"""romou serve: this machine's devices for a tuner on another machine."""

from __future__ import annotations

import click

from romou.cli.common import debug_option, json_option, key_option, print_json


@click.command("serve")
@key_option
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; one that other machines reach is warned of.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=9090, show_default=True, help="0: any free one, which is printed."
)
@click.option(
    "--tracker", default=None, metavar="HOST:PORT", help="Register with this tracker (python -m tvm.exec.rpc_tracker)."
)
@click.option(
    "--limit",
    "limit_s",
    type=click.FloatRange(min=1),
    default=3600.0,
    show_default=True,
    help="Seconds after which any session is ended.",
)
@json_option
@debug_option
def command(key: str, host: str, port: int, tracker: str | None, limit_s: float, is_json: bool) -> None:
    """Serve this machine's devices over TVM RPC, until it is stopped.

    The server runs all code that it receives, as the user who started it.

    \b
    Examples:
      romou serve --key-file secret.txt
      romou serve --key-file secret.txt --tracker 127.0.0.1:9190
    """
    from romou.runtime.rpc.serve import ServeOptions, serve

    def on_listening(address: str, chosen: int) -> None:
        if is_json:
            print_json({"host": address, "port": chosen, "tracker": tracker})

    serve(
        ServeOptions(host=host, port=port, key=key, tracker=tracker, limit_s=limit_s),
        lambda line: click.echo(line, err=True),
        on_listening,
    )
