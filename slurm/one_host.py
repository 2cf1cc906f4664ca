"""one_host: a real Slurm cluster of several nodes on this machine, for tests and for trying the profile.

It runs munge, slurmctld and one slurmd a node (with accounting: MariaDB and slurmdbd too) on loopback, as root, without
systemd and cgroups, with all its state below one folder. Nodes pretend to have cores and GPUs. Debian or Ubuntu:

    apt-get install -y --no-install-recommends slurm-wlm munge slurmdbd mariadb-server-core mariadb-client-core
    python -m slurm.one_host start --root /tmp/slurm     prints the line that points Slurm's commands to it
    python -m slurm.one_host stop --root /tmp/slurm
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm.processes import kill, processes

DAEMONS = ("munged", "slurmctld", "slurmd")
ACCOUNTING_DAEMONS = ("slurmdbd", "mariadbd", "mariadb-install-db")
START_S = 60.0
STOP_S = 15.0

SLURM_CONF = """\
ClusterName=onehost
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
# The credential's life is also how long a requeued job waits (120 s by default).
AuthInfo=socket={root}/run/munge.sock,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmdPidFile={root}/run/slurmd.%n.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdLogFile={root}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
MailProg=/bin/true
MaxArraySize={max_array_size}
PropagateResourceLimits=NONE
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=0,batch_sched_delay=0
PriorityType=priority/basic
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
KillWait=5
SlurmdTimeout={node_timeout_s}
InactiveLimit=0
MinJobAge=300
MessageTimeout=30
DefMemPerCPU=256
{accounting}
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10 PriorityTier=10 State=UP GraceTime=5
PartitionName=low Nodes=ALL MaxTime=INFINITE DefaultTime=10 PriorityTier=1 PreemptMode=REQUEUE State=UP GraceTime=5
PartitionName=high Nodes=ALL MaxTime=INFINITE DefaultTime=10 PriorityTier=100 PreemptMode=OFF State=UP
"""
ACCOUNTING_CONF = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={root}/run/munge.sock
AccountingStorageTRES=gres/gpu
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.sock,cred_expire=5
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser={user}
PidFile={root}/run/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct
"""


def missing_programs(accounting: bool) -> list[str]:
    """Programs that are not installed; empty where a cluster can be started."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin"
    wanted = (*DAEMONS, "sbatch", "mknod", *(ACCOUNTING_DAEMONS if accounting else ()))
    return [name for name in wanted if shutil.which(name, path=path) is None]


@dataclass(frozen=True, slots=True)
class OneHostCluster:
    """A cluster below ``root``. ``port``: the first of eight free ports that it uses on loopback."""

    root: Path
    nodes: int = 3
    cores: int = 4
    memory_mb: int = 16_000
    gpus: int = 2
    accounting: bool = False
    port: int = 16_817
    node_timeout_s: int = 300
    """After so long a silent node counts as dead."""
    max_array_size: int = 1001
    """Slurm's MaxArraySize: the most parts of a job array."""

    @property
    def variables(self) -> dict[str, str]:
        """What Slurm's commands need in their environment."""
        return {"SLURM_CONF": str(self.root / "etc" / "slurm.conf")}

    def start(self) -> None:
        """Start every daemon and wait until all nodes are idle. RuntimeError says which step did not come up."""
        if self._pids():
            raise RuntimeError(f"daemons of {self.root} are running already: stop them first")
        for name in ("run", "log", "state", "etc", "munge", "db", "gpu", *(f"spool/n{n}" for n in self._numbers())):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        os.chmod(self.root / "munge", 0o700)
        self._write_configuration()
        self._start_munge()
        if self.accounting:
            self._start_accounting()
        self.start_controller()
        for number in self._numbers():
            self.start_node(f"n{number}")
        self._await("all nodes idle", self._nodes_are_up)

    def start_controller(self) -> None:
        """Start slurmctld; also after ``stop_controller``, with the jobs that it knew."""
        self._run("slurmctld")
        self._await("slurmctld", lambda: self._succeeds("scontrol", "ping"))

    def stop_controller(self) -> None:
        """End slurmctld alone; jobs go on."""
        _end(self.root / "run" / "slurmctld.pid")

    def start_node(self, name: str) -> None:
        """Start the daemon of one node; also after ``kill_node``."""
        self._run("slurmd", "-N", name)

    def kill_node(self, name: str) -> None:
        """What a power failure does: the node's daemon and everything that runs on it is gone without a word."""
        victims = [_living(self.root / "run" / f"slurmd.{name}.pid")]
        jobs = self._call("squeue", "--noheader", f"--nodelist={name}", "--format=%A").stdout.split()
        for process in processes():
            step = any(process.command.startswith(f"slurmstepd: [{job}.") for job in jobs)
            if step or {f"SLURMD_NODENAME={name}", self._conf} <= process.environment:
                victims.append(process.pid)
        kill(victims)

    @property
    def _conf(self) -> str:
        return f"SLURM_CONF={self.variables['SLURM_CONF']}"

    def stop(self) -> None:
        """Cancel all jobs and end every daemon, each by its pid file."""
        if not self._pids():
            return
        self._succeeds("scancel", "--full", f"--user={_user()}")
        time.sleep(1)
        for pattern in ("slurmctld", "slurmd.*", "slurmdbd", "mariadbd", "munged"):
            for path in sorted((self.root / "run").glob(f"{pattern}.pid")):
                _end(path)
        # Daemons without a pid file, and the step daemons of jobs that would not end.
        names = ("slurmctld", "slurmd", "slurmstepd")
        kill(p.pid for p in processes() if self._conf in p.environment and p.program in names)

    # -- parts

    def _numbers(self) -> range:
        return range(1, self.nodes + 1)

    def _pids(self) -> list[int]:
        return [pid for path in (self.root / "run").glob("*.pid") if (pid := _living(path)) is not None]

    def _write_configuration(self) -> None:
        etc, gres = self.root / "etc", ""
        if self.gpus:
            gres = f" Gres=gpu:fake:{self.gpus}"
            for number in range(self.gpus):
                device = self.root / "gpu" / f"fake{number}"
                if not device.exists():  # slurmd accepts character devices only
                    os.mknod(device, stat.S_IFCHR | 0o600, os.makedev(1, 3))
            (etc / "gres.conf").write_text(
                f"NodeName=n[1-{self.nodes}] Name=gpu Type=fake File={self.root}/gpu/fake[0-{self.gpus - 1}] "
                "Flags=nvidia_gpu_env\n"
            )
        lines = [
            f"NodeName=n{n} NodeHostname={_host()} NodeAddr=127.0.0.1 Port={self.port + 2 + n} CPUs={self.cores} "
            f"RealMemory={self.memory_mb}{gres} State=UNKNOWN"
            for n in self._numbers()
        ]
        accounting = ACCOUNTING_CONF.format(port=self.port + 1, root=self.root) if self.accounting else ""
        (etc / "slurm.conf").write_text(
            SLURM_CONF.format(
                host=_host(),
                port=self.port,
                user=_user(),
                root=self.root,
                accounting=accounting,
                nodes="\n".join(lines),
                node_timeout_s=self.node_timeout_s,
                max_array_size=self.max_array_size,
            )
        )

    def _start_munge(self) -> None:
        key = self.root / "munge" / "munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(1024))
            os.chmod(key, 0o400)
        run = self.root / "run"
        self._run(
            "munged",
            "--force",
            f"--key-file={key}",
            f"--socket={run}/munge.sock",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.root}/log/munged.log",
            f"--seed-file={self.root}/munge/seed",
        )
        self._await("munged", (run / "munge.sock").is_socket)

    def _start_accounting(self) -> None:
        root, run, log = self.root, self.root / "run", self.root / "log"
        database_port = self.port + 2
        if not (root / "db" / "mysql").is_dir():
            self._run(
                "mariadb-install-db",
                "--no-defaults",
                f"--user={_user()}",
                f"--datadir={root}/db",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
            )
        subprocess.Popen(
            [
                _program("mariadbd"),
                "--no-defaults",
                f"--user={_user()}",
                f"--datadir={root}/db",
                f"--socket={run}/mysql.sock",
                f"--pid-file={run}/mariadbd.pid",
                "--bind-address=127.0.0.1",
                f"--port={database_port}",
                "--innodb-lock-wait-timeout=900",
                f"--log-error={log}/mariadb.log",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        client = ("mariadb", "--no-defaults", f"--socket={run}/mysql.sock", "--user=root")
        self._await("mariadbd", lambda: self._succeeds(*client, "--execute=select 1"))
        password = secrets.token_hex(8)
        grants = "".join(
            f"create or replace user slurm@'{host}' identified by '{password}'; "
            f"grant all on slurm_acct.* to slurm@'{host}'; "
            for host in ("127.0.0.1", "localhost")
        )
        self._run(*client, f"--execute=create database if not exists slurm_acct; {grants}")
        configuration = root / "etc" / "slurmdbd.conf"
        configuration.write_text(
            SLURMDBD_CONF.format(
                host=_host(),
                user=_user(),
                root=root,
                port=self.port + 1,
                database_port=database_port,
                password=password,
            )
        )
        os.chmod(configuration, 0o600)
        self._run("slurmdbd")
        self._await("slurmdbd", lambda: self._succeeds("sacctmgr", "-n", "show", "cluster"))
        for words in (("cluster", "onehost"), ("account", "test"), ("user", _user(), "account=test")):
            self._succeeds("sacctmgr", "-i", "add", *words)

    def _nodes_are_up(self) -> bool:
        asked = self._call("sinfo", "--noheader", "--Node", "--partition=debug", "--states=idle", "--format=%N")
        return len(set(asked.stdout.split())) == self.nodes

    def _call(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [_program(program), *arguments],
            env=os.environ | self.variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = self._call(program, *arguments)
        if done.returncode:
            raise RuntimeError(f"{program} failed: {(done.stderr or done.stdout).strip()}; logs in {self.root}/log")

    def _succeeds(self, program: str, *arguments: str) -> bool:
        try:
            return self._call(program, *arguments).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def _await(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not ready():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}: not there after {START_S:.0f} s; logs in {self.root}/log")
            time.sleep(0.2)


def _program(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/bin")
    if found is None:
        raise RuntimeError(f"{name} is not installed")
    return found


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _living(pid_file: Path) -> int | None:
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


def _end(pid_file: Path) -> None:
    pid = _living(pid_file)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while _living(pid_file) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if _living(pid_file) is not None:
            os.kill(pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.one_host", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("start", "stop"))
    parser.add_argument("--root", type=Path, required=True, help="folder of the cluster's state")
    parser.add_argument("--accounting", action="store_true", help="with MariaDB and slurmdbd, so that sacct works")
    args = parser.parse_args(arguments)
    cluster = OneHostCluster(args.root.absolute(), accounting=args.accounting)
    missing = missing_programs(args.accounting)
    if missing or os.getuid() != 0:
        sys.exit(f"error: needs root and {', '.join(missing) or 'nothing more'}; see --help for the packages")
    if args.what == "stop":
        cluster.stop()
        return
    try:
        cluster.start()
    except (RuntimeError, OSError) as error:
        sys.exit(f"error: {error}")
    print(" ".join(["export", *(f"{name}={value}" for name, value in cluster.variables.items())]))


if __name__ == "__main__":
    main()
