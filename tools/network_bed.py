"""Networks of namespaces on this machine: hosts at sites, shaped access links, one shared trunk between two sites.

    with network_bed.bed(network, relay) as made:
        process = made.start(0, ["iperf3", "--server"])     # a command on host 0
        ... made.addresses[0] ...

Every host and every site's router is a namespace. A veth pair connects a host to its router. A trunk connects two
routers: a veth pair or, with a delay, two TAP devices with tests/net/tap_relay.cpp between them. A token bucket (`tc`
tbf) limits the rate at each end of each link, so all traffic over a trunk in one direction shares it. The queues before
the buckets are long, and no packets are lost. TCP's windows do not limit transfers, and open once for a connection:
HOST_SETTINGS.

Nothing outside the bed's own namespaces changes. They are removed when the block ends, also after an exception; those of
a killed process are removed by the next bed.
"""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading
from typing import NamedTuple

MTU = 9000  # bytes of an IP packet
FRAME = MTU + 14  # bytes that a token bucket counts: includes the Ethernet header
SEGMENT = MTU - 20 - 20 - 12  # bytes of payload: without the headers of IP and TCP and TCP's time stamps
PAYLOAD = SEGMENT / FRAME  # ratio of a transfer's payload to the bytes on its links, with full segments
QUEUE = 64 * 1000 * 1000  # bytes before a token bucket
ACCESS_LATENCY_MS = 0.05  # of a link without a delay: two devices, and waking up the receiver

HOST_SETTINGS = {
    "net.ipv4.tcp_congestion_control": "reno",  # the only one that every namespace can select
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_no_metrics_save": "1",
    "net.ipv4.tcp_rmem": "4096 1048576 67108864",
    "net.ipv4.tcp_wmem": "4096 1048576 67108864",
}
ROUTER_SETTINGS = {"net.ipv4.ip_forward": "1"}
NAMESPACE = re.compile(r"^isobar-(\d+)-")


class Host(NamedTuple):
    """A host at a site. `mbit`: rate of its link in each direction, in Mbit/s (10⁶ bits of Ethernet frames)."""

    site: str
    mbit: float


class Trunk(NamedTuple):
    """The link between two sites: rate of each direction in Mbit/s, and one-way delay."""

    mbit: float
    delay_ms: float


class Network(NamedTuple):
    """Hosts in order, and a trunk for each connected pair of sites, by their names in either order."""

    hosts: tuple
    trunks: dict

    def sites(self):
        return list(dict.fromkeys(host.site for host in self.hosts))

    def trunk(self, site, other):
        return self.trunks.get((site, other)) or self.trunks.get((other, site))


class Unavailable(Exception):
    """Why namespaces cannot be created here, in one line."""


class Failed(Exception):
    """Why setting up a network failed although namespaces can be created."""


def run(*command):
    """Runs a command of iproute2 and returns its output. Raises Failed with its error message."""
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if result.returncode != 0:
        raise Failed(f"{' '.join(map(str, command))}: {result.stderr.strip() or 'failed'}")
    return result.stdout


def set_sysctl(namespace, key, value):
    run("ip", "netns", "exec", namespace, "sysctl", "-q", "-w", f"{key}={value}")


def check_available():
    """Raises Unavailable with the reason when this machine or this user cannot create such networks."""
    for program in ("ip", "tc", "sysctl"):
        if shutil.which(program) is None:
            raise Unavailable(f"`{program}` is not on the PATH (packages iproute2, procps)")
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        raise Unavailable("/dev/net/tun cannot be opened")
    name = f"isobar-{os.getpid()}-try"
    try:
        run("ip", "netns", "add", name)
        try:
            run("tc", "-n", name, "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", FRAME, "limit",
                QUEUE)
            run("ip", "-n", name, "link", "add", "one", "type", "veth", "peer", "other")
            run("ip", "netns", "exec", name, "ip", "tuntap", "add", "dev", "tap", "mode", "tap")
            for key, value in {**HOST_SETTINGS, **ROUTER_SETTINGS}.items():
                set_sysctl(name, key, value)
        finally:
            run("ip", "netns", "del", name)
    except Failed as failure:
        raise Unavailable(str(failure)) from failure


def remove_leftovers():
    """Removes namespaces of processes that have ended."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        match = NAMESPACE.match(name)
        if match and not pathlib.Path(f"/proc/{match.group(1)}").exists():
            run("ip", "netns", "del", name)


@contextlib.contextmanager
def uninterrupted():
    """Delays Ctrl-C until the block ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Bed:
    """A running network. `addresses`: IPv4 addresses of the hosts, in order."""

    numbers = itertools.count()

    def __init__(self, network, relay):
        self.network = network
        self.relay = str(relay)
        self.prefix = f"isobar-{os.getpid()}-{next(self.numbers)}"
        self.namespaces = []
        self.processes = []
        self.addresses = [f"10.{self.number(host.site)}.{index}.2" for index, host in enumerate(network.hosts)]

    def number(self, site):
        return 1 + self.network.sites().index(site)

    def host(self, index):
        return f"{self.prefix}-host{index}"

    def router(self, site):
        return f"{self.prefix}-site{self.number(site)}"

    def add_namespace(self, name, settings):
        run("ip", "netns", "add", name)
        self.namespaces.append(name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        for key, value in settings.items():
            set_sysctl(name, key, value)

    def bring_up(self, namespace, device, address, mbit):
        """Gives a device its address and its rate."""
        run("ip", "-n", namespace, "link", "set", device, "mtu", MTU, "txqueuelen", 10000, "up")
        run("ip", "-n", namespace, "address", "add", address, "dev", device)
        self.shape("add", namespace, device, mbit)

    def shape(self, verb, namespace, device, mbit):
        # A burst may have 1 ms of the rate, and at least two frames.
        burst = max(2 * FRAME, int(mbit * 1e6 / 8 * 1e-3))
        run("tc", "-n", namespace, "qdisc", verb, "dev", device, "root", "tbf", "rate", f"{mbit:g}mbit", "burst",
            burst, "limit", QUEUE)

    def add_host(self, index):
        host = self.network.hosts[index]
        name, router, device = self.host(index), self.router(host.site), f"host{index}"
        network = f"10.{self.number(host.site)}.{index}"
        self.add_namespace(name, HOST_SETTINGS)
        run("ip", "-n", router, "link", "add", device, "type", "veth", "peer", "nic", "netns", name)
        self.bring_up(router, device, f"{network}.1/30", host.mbit)
        self.bring_up(name, "nic", f"{network}.2/30", host.mbit)
        run("ip", "-n", name, "route", "add", "default", "via", f"{network}.1")

    def add_trunks(self):
        pairs = [pair for pair in itertools.combinations(self.network.sites(), 2) if self.network.trunk(*pair)]
        delays = [self.network.trunk(*pair).delay_ms for pair in pairs]
        if any(delays):
            self.start_relay([f"trunk{number}a,trunk{number}b,{delay:g}" for number, delay in enumerate(delays)
                              if delay])
        for number, pair in enumerate(pairs):
            routers, devices = [self.router(site) for site in pair], [f"trunk{number}a", f"trunk{number}b"]
            if delays[number]:
                for router, device in zip(routers, devices):
                    run("ip", "-n", f"{self.prefix}-relay", "link", "set", device, "netns", router)
            else:
                run("ip", "-n", routers[0], "link", "add", devices[0], "type", "veth", "peer", devices[1], "netns",
                    routers[1])
            addresses = [f"10.200.{number}.1", f"10.200.{number}.2"]
            for end in (0, 1):
                self.bring_up(routers[end], devices[end], f"{addresses[end]}/30", self.network.trunk(*pair).mbit)
            for end in (0, 1):
                run("ip", "-n", routers[end], "route", "add", f"10.{self.number(pair[1 - end])}.0.0/16", "via",
                    addresses[1 - end])

    def start_relay(self, wires):
        name = f"{self.prefix}-relay"
        self.add_namespace(name, {})
        # The relay ends with its standard input, hence also when this process is killed.
        process = subprocess.Popen(["ip", "netns", "exec", name, self.relay, *wires], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.processes.append(process)
        if process.stdout.readline() != "ready\n":
            raise Failed(process.stderr.read().strip() or f"{self.relay}: did not start")

    def build(self):
        for site in self.network.sites():
            self.add_namespace(self.router(site), ROUTER_SETTINGS)
        for index in range(len(self.network.hosts)):
            self.add_host(index)
        self.add_trunks()

    def start(self, host, command, **options):
        """Starts a command on a host; returns a subprocess.Popen. The bed ends the command when it is removed."""
        process = subprocess.Popen(["ip", "netns", "exec", self.host(host), *map(str, command)], **options)
        self.processes.append(process)
        return process

    def set_rate(self, host, mbit):
        """Changes the rate at which a host sends."""
        self.shape("change", self.host(host), "nic", mbit)

    def set_sysctl(self, host, key, value):
        """Changes a network setting of a host, in addition to HOST_SETTINGS."""
        set_sysctl(self.host(host), key, value)

    def cut(self, host):
        """Takes a host's link down."""
        run("ip", "-n", self.router(self.network.hosts[host].site), "link", "set", f"host{host}", "down")

    def remove(self):
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()
        for name in reversed(self.namespaces):
            run("ip", "netns", "del", name)


@contextlib.contextmanager
def bed(network, relay):
    """Sets the network up and yields it as a Bed. `relay`: the program tap_relay. Raises Unavailable, Failed."""
    check_available()
    remove_leftovers()
    made = Bed(network, relay)
    try:
        made.build()
        yield made
    finally:
        with uninterrupted():
            made.remove()


def platform_xml(network, hosts):
    """SimGrid platform file of the network as it is configured.

    `hosts`: the `<host>` element of each host. A link of R Mbit/s carries R · PAYLOAD of payload, where PAYLOAD is
    (MTU − IP − TCP − time stamps) / (MTU + Ethernet). An access link is `up.N` and `down.N`; a trunk is one link for each
    direction, shared by all its transfers, with the delay as its latency.
    """
    names = [re.search(r'id="([^"]+)"', element).group(1) for element in hosts]

    def link(name, mbit, latency_ms):
        rate = mbit * 1e6 / 8 * PAYLOAD
        return f'    <link id="{name}" bandwidth="{rate:.0f}Bps" latency="{latency_ms:g}ms"/>'

    def way(one, other):
        sites = network.hosts[one].site, network.hosts[other].site
        between = [] if sites[0] == sites[1] else [f"trunk.{sites[0]}.{sites[1]}"]
        return [f"up.{one}", *between, f"down.{other}"]

    links = []
    for index, host in enumerate(network.hosts):
        links += [link(f"{direction}.{index}", host.mbit, ACCESS_LATENCY_MS) for direction in ("up", "down")]
    for site, other in itertools.permutations(network.sites(), 2):
        if trunk := network.trunk(site, other):
            links.append(link(f"trunk.{site}.{other}", trunk.mbit, trunk.delay_ms + ACCESS_LATENCY_MS))
    routes = [f'    <route src="{names[one]}" dst="{names[other]}" symmetrical="NO">'
              + "".join(f'<link_ctn id="{name}"/>' for name in way(one, other)) + "</route>"
              for one, other in itertools.permutations(range(len(names)), 2)]
    body = "\n".join([*(f"    {host}" for host in hosts), *links, *routes])
    return ("<?xml version='1.0'?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
            f'<platform version="4.1">\n  <zone id="network" routing="Full">\n{body}\n  </zone>\n</platform>\n')
