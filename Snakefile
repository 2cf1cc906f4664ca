"""The pipeline: data preparation, training of every method and seed, analysis.

    snakemake --cores 2                                  the quickstart experiment, from tasks to report
    snakemake --cores 2 --config experiment=laptop_grid  another file of configs/experiments
    snakemake --cores 2 rubrics                          a vocabulary discovered in the experiment's rollouts
    snakemake --cores 1 report --config runs=DIR         only the analysis, from finished runs below DIR
    snakemake --cores 2 retag --config judge=NAME        another judge's tags of the finished runs; trains nothing
    snakemake --cores 2 reselect --config selectors=A,B  what other selectors would have chosen in them
    snakemake --cores 1 publish                          the runs as a dataset with its card; `verify` checks one
    snakemake -n                                         the plan

The software of every rule is the environment of environment.yml (`conda env create -f environment.yml`, then
`--sdm conda`), or simply the one that Snakemake itself runs in.
Rules live in stages/*.smk; what they run can be run alone (``python -m stages.train --help``).
"""

import sys
from pathlib import Path

from snakemake.utils import min_version

from rised.config import ConfigError
from rised.config.paths import shipped
from rubric_discovery.planning import read_discovery
from slurm.plan import Plan
from stages.grid import read_grid

min_version("9.0")

try:
    GRID = read_grid(config)
    PLAN = Plan.of(GRID)
    DISCOVERY = read_discovery(config, GRID)
except ConfigError as error:
    sys.exit(f"error: {error}")
print(PLAN.summary(), end="", file=sys.stderr)


wildcard_constraints:
    method="[a-z][a-z0-9_]*",
    seed="[0-9]+",
    judge="[a-z0-9][a-z0-9_]*",


include: "stages/kept.smk"
include: "stages/prepare.smk"
include: "stages/warm_start.smk"
include: "stages/train.smk"
include: "stages/evaluate.smk"
include: "stages/gradient.smk"
include: "stages/second_tags.smk"
include: "stages/retag.smk"
include: "stages/select.smk"
include: "stages/audit_judge.smk"
include: "stages/analysis.smk"
include: "stages/publish.smk"
include: "rubric_discovery/rules.smk"


localrules:
    all,
    data,
    runs,
    retag,
    reselect,
    rubrics,
    tables,
    figures,
    report,


rule all:
    default_target: True
    input:
        GRID.report,


rule data:
    input:
        GRID.tasks,


rule runs:
    input:
        GRID.finished_runs,


rule retag:
    input:
        lambda wildcards: GRID.stored_products("retag"),


rule reselect:
    input:
        lambda wildcards: GRID.stored_products("reselect"),


rule rubrics:
    input:
        DISCOVERY.path("freeze.yaml"),


rule tables:
    input:
        GRID.table_files,


rule figures:
    input:
        GRID.figure_files,


rule report:
    input:
        GRID.report,


onsuccess:
    print(f"Done. Report: {Path(GRID.report).resolve()}" if Path(GRID.report).exists() else "Done.")


onerror:
    print(f"Failed. Each rule's log is below {GRID.logs}; the last lines of the failed one say why.")
