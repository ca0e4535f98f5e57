#!/usr/bin/env python3
"""Writes a llama model of a given shape with random weights in F16, for measuring speed: small models fit the cache.

    random_model.py OUT.gguf [--layers 16] [--embd 2048] [--ff 8192] [--heads 32] [--kv 8] [--vocab 32000] [--seed 1]

The defaults are a model of about a billion weights. Needs gguf and numpy.
"""
import argparse

import gguf
import numpy as np


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    for name, value in dict(layers=16, embd=2048, ff=8192, heads=32, kv=8, vocab=32000, seed=1, context=4096).items():
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    rng = np.random.default_rng(a.seed)
    w = gguf.GGUFWriter(a.out, "llama", use_temp_file=True)
    w.add_name("random")
    w.add_context_length(a.context)
    w.add_embedding_length(a.embd)
    w.add_block_count(a.layers)
    w.add_feed_forward_length(a.ff)
    w.add_head_count(a.heads)
    w.add_head_count_kv(a.kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(a.embd // a.heads)
    w.add_file_type(1)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    tokens += [f"t{i}" for i in range(a.vocab - len(tokens))]
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * 259 + [-float(i) for i in range(a.vocab - 259)])
    w.add_token_types([2, 3, 3] + [6] * 256 + [1] * (a.vocab - 259))
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)

    def matrix(name, n_in, n_out):
        m = rng.standard_normal((n_out, n_in), dtype=np.float32) / np.float32(n_in ** 0.5)
        w.add_tensor(name + ".weight", m.astype(np.float16))

    def norm(name):
        w.add_tensor(name + ".weight", np.ones(a.embd, dtype=np.float32))

    kv = a.embd // a.heads * a.kv
    matrix("token_embd", a.embd, a.vocab)
    for i in range(a.layers):
        b = f"blk.{i}."
        norm(b + "attn_norm")
        matrix(b + "attn_q", a.embd, a.embd)
        matrix(b + "attn_k", a.embd, kv)
        matrix(b + "attn_v", a.embd, kv)
        matrix(b + "attn_output", a.embd, a.embd)
        norm(b + "ffn_norm")
        matrix(b + "ffn_gate", a.embd, a.ff)
        matrix(b + "ffn_up", a.embd, a.ff)
        matrix(b + "ffn_down", a.ff, a.embd)
    norm("output_norm")
    matrix("output", a.embd, a.vocab)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
