"""Where a launch will answer on this machine, also where it runs in a container."""

from __future__ import annotations

from attnfit.deploy.command import Launch
from attnfit.engines.serving import Address, Serving


def address_of(launch: Launch, serving: Serving) -> Address:
    found = serving.address(launch.command.argv, launch.command.form, launch.server_env)
    published = launch.published
    if published is None or found.nothing:
        return found
    if found.port not in published:
        return Address(nothing=f"the container publishes no port of this machine for its port {found.port} (-p)")
    return found._replace(host="127.0.0.1", port=published[found.port])
