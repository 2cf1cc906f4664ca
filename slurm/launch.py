"""launch: run a stage's command as a job and wait for its result.

    python -m slurm.launch --site slurm/site.yaml --stage train --name train-rised-seed-0 --folder DIR \\
        --input tasks.parquet --output DONE -- python -m stages.train ...

Run again, it attaches to the job that is there. SIGINT and SIGTERM cancel the job; SIGHUP leaves it running. With
--parts N it submits a job array whose parts see STAGE_PART and STAGE_PARTS, runs again only those that failed, and then
runs the command once itself to put them together.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from rised.config import ConfigError
from rised.config.paths import shipped
from slurm.errors import Detached, StageFailed
from slurm.job_files import StageCall
from slurm.jobs import Executor
from slurm.launcher import Launcher
from slurm.service import ENDPOINT, Service, service_call
from slurm.site import Site, load_site
from stages.cli import run_stage
from stages.judge_need import STAGE as JUDGE_SERVER
from stages.judge_need import JudgeNeed, judge_need, named_judge_need


def judge_services(need: JudgeNeed | None, site: Site, executor: Executor, lingers: bool = False) -> list[Service]:
    """The judge's server, if one is needed; none in a debugger, which has no second process.

    ConfigError if its endpoint file has another name than servers have here.
    """
    if need is None or executor == "debug":
        return []
    folder = need.endpoint.parent
    if need.endpoint.name != ENDPOINT:
        raise ConfigError(f"{need.config}: rubrics.judge.endpoint is {need.endpoint}: name the file {ENDPOINT}")
    call = service_call(JUDGE_SERVER, folder, need.command, (str(need.config),))
    return [Service(call, site, executor, folder, lingers=lingers)]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m slurm.launch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--executor", choices=("slurm", "local", "debug"), default="slurm", help="where jobs run (default: %(default)s)"
    )
    parser.add_argument(
        "--site", type=Path, default=shipped("slurm/site.yaml"), help="site file (YAML) (default: %(default)s)"
    )
    parser.add_argument("--stage", required=True, help="whose resources of the site file")
    parser.add_argument("--name", required=True, help="name of the job")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the job's files and logs")
    parser.add_argument("--input", nargs="*", default=[], help="files that the command reads")
    parser.add_argument("--output", nargs="*", default=[], help="files that it writes")
    parser.add_argument("--experiment", type=Path, help="experiment file whose `resources` go before the site's")
    parser.add_argument(
        "--parts", type=int, default=1, help="more than 1: a job array of so many equal parts (default: %(default)s)"
    )
    parser.add_argument(
        "--needs",
        nargs=3,
        action="append",
        default=[],
        metavar=("STAGE", "FOLDER", "COMMAND"),
        help="a server that must run beside the job: its stage in the site file, its folder, its command as one word; "
        "the command writes endpoint.json into the folder when it answers",
    )
    parser.add_argument("--judge-of", metavar="METHOD", help="the judge's server, if a run of this method needs one")
    parser.add_argument("--judge", help="the server of a judge by its name or file, if it says how it is served")
    parser.add_argument(
        "--lingers", action="store_true", help="the server stays service_linger_s: a stage follows that needs it"
    )
    parser.add_argument("--resumes", action="store_true", help="the command goes on where it stopped: requeue it")
    parser.add_argument("--dry-run", action="store_true", help="write the batch script into the folder, submit nothing")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the stage's command")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        parser.error("give the stage's command after --")
    call = StageCall(
        args.name, args.stage, tuple(command), tuple(args.input), tuple(args.output), args.resumes, args.parts
    )
    if args.needs and args.executor == "debug":
        parser.error("--needs: in a debugger there is no second process; start the server yourself")
    if args.judge_of and args.experiment is None:
        parser.error("--judge-of needs --experiment")
    try:
        site = load_site(args.site, experiment=args.experiment)
        services = [
            Service(service_call(stage, Path(folder), shlex.split(words)), site, args.executor, Path(folder))
            for stage, folder, words in args.needs
        ]
        if args.judge_of:
            need = judge_need(args.experiment, args.judge_of)
            services += judge_services(need, site, args.executor)
        if args.judge:
            named = named_judge_need(args.judge)
            serves = load_site(args.site, experiment=args.experiment, judge=None if named is None else named.config)
            services += judge_services(named, serves, args.executor, args.lingers)
        launcher = Launcher(call, site, args.executor, args.folder, services=services)
        if args.dry_run:
            args.folder.mkdir(parents=True, exist_ok=True)
            script = args.folder / "dry-run.sh"
            script.write_text(launcher.script())
            print(f"{script}:\n{script.read_text()}")
            return
        launcher.run()
    except (StageFailed, ConfigError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except Detached as reason:
        print(reason, file=sys.stderr)
        sys.exit(129)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run_stage(main)
