"""What embeddings cost, for people."""

from loadtest.embeddings.measuring import EmbeddingReport


def embedding_text(report: EmbeddingReport) -> str:
    """Return a report for people."""
    load = report.load
    return "\n".join(
        [
            f"{report.n_inputs} inputs of {report.n_tokens} tokens in all, {load.n_rounds} rounds:"
            f" {report.together_s:.2f} s in one request, {report.alone_s:.2f} s one by one,"
            f" ratio {report.ratio:.2f}; vectors {report.largest_difference:.1e} apart at most",
            f"{load.n_streams} streams of {load.max_tokens} tokens: ITL p95"
            f" {report.itl_p95_ms:.1f} ms, beside embeddings {report.itl_p95_beside_ms:.1f} ms;"
            f" {report.tokens_per_s:.1f} and {report.tokens_per_s_beside:.1f} tokens/s,"
            f" {report.beside_per_s:.1f} inputs/s beside",
        ]
    )
