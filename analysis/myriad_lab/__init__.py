"""Statistics, figures and report of Myriad's lab.

The lab (`myriad lab run`, in Rust) measures and writes result files. This package reads them. It measures nothing itself, and it
never makes up a value: where a claim of a paper has no data, the report says "not run".

    samples    result files into one table
    factors    which choice of an option counts as "off" and which as "on"
    factorial  the 2^k combinations of a test: ranks, linear model, paths
    ratios     one target against another, with intervals and the noise floor
    curves     cost against size
    papers     tables that the papers print
    claims     what the papers say, held against the samples
    figures/   pictures; each takes a result of the above
    report/    the page
"""
