rule nano_policy:
    message:
        "Nano policy: tokenizer and supervised warm start on expert transcripts" + PLAN.note("nano_policy")
    input:
        str(shipped("configs/nano_policy.yaml")),
    output:
        f"{GRID.results}/nano_policy/model.safetensors",
    log:
        f"{GRID.results}/nano_policy/logs/nano_policy.log",
    benchmark:
        f"{GRID.results}/nano_policy/logs/nano_policy.benchmark.tsv"
    resources:
        **PLAN.resources("nano_policy"),
    conda:
        "../environment.yml"
    threads: 2
    shell:
        GRID.launch("nano_policy", "nano_policy")
        + 'python -m stages.warm_start --config {input:q} --out "$(dirname -- {output:q})" > {log:q} 2>&1'
