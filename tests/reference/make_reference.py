#!/usr/bin/env python3
"""Writes the numbers that tests/run/test_reference.py compares compiled programs with.

usage: make_reference.py            (writes beside itself; needs torch 2.5.1 and numpy, see requirements.txt)

The models are ordinary PyTorch modules in float64, the optimizer and the clipping are PyTorch's own. Nothing here is
taken from the compiler: what both share is the meaning of the two .plan files, the layout of the stored tensors
(docs/program.md) and the order of the data (runtime/data/order.c), which is restated below.

Files: tokens.bin (llm.c, 16-bit ids), and for each model NAME-weights.safetensors (before step 1, by the names of the
plan), NAME-expected.safetensors (`grad.X`: of step 1, before clipping; `after.X`: weights after step 1) and
NAME-expected.json (losses and gradient norms of ten steps, learning rates).
"""
import json, math, os, struct
import torch
from torch import nn
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
VOCAB, SEQ, BATCH, STEPS, WINDOWS = 97, 32, 4, 10, 37  # 40 windows are read: the order of the second epoch counts too
EMBED, LAYERS, HEADS = 36, 2, 4
MASK = (1 << 64) - 1
torch.set_default_dtype(torch.float64)


# ---- data ----

def permute(index, n, key):
    """A balanced Feistel network of six rounds on the fewest even bits that hold n, walked until it is below n."""
    def mix(x):
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & MASK
        x = (x ^ x >> 27) * 0x94d049bb133111eb & MASK
        return x ^ x >> 31
    half = 1
    while 1 << 2 * half < n:
        half += 1
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for r in range(6):
            left, right = right, left ^ mix((right + mix((key + r * 0x9e3779b97f4a7c15) & MASK)) & MASK) & low
        index = left << half | right
        if index < n:
            return index


def window_at(position, seed):
    epoch, index = divmod(position, WINDOWS)
    return permute(index, WINDOWS, (seed * 0xd1342543de82ef95 + epoch * 0x2545f4914f6cdd1d) & MASK)


def make_tokens(random):
    """A walk that can be learned a little: most ids follow from the one before."""
    ids = [3]
    while len(ids) < WINDOWS * SEQ + 1:
        jump = torch.randint(0, VOCAB, (1,), generator=random).item()
        ids.append((ids[-1] * 5 + 7) % VOCAB if jump < 60 else jump)
    with open(os.path.join(HERE, "tokens.bin"), "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(ids), *[0] * 253) + struct.pack("<%dH" % len(ids), *ids))
    return torch.tensor(ids)


def batch_of(ids, step, seed):
    starts = [window_at((step - 1) * BATCH + i, seed) * SEQ for i in range(BATCH)]
    return torch.stack([ids[s:s + SEQ] for s in starts]), torch.stack([ids[s + 1:s + SEQ + 1] for s in starts])


# ---- models ----

def causal_attention(q, k, v):
    """[batch, head, position, width] each."""
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    n = scores.shape[-1]
    return torch.softmax(scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf")), -1) @ v


class GPT2Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(EMBED, eps=1e-5), nn.LayerNorm(EMBED, eps=1e-5)
        self.c_attn, self.c_proj = nn.Linear(EMBED, 3 * EMBED), nn.Linear(EMBED, EMBED)
        self.c_fc, self.mlp_proj = nn.Linear(EMBED, 4 * EMBED), nn.Linear(4 * EMBED, EMBED)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in self.c_attn(self.ln_1(x)).split(c, 2))
        x = x + self.c_proj(causal_attention(q, k, v).transpose(1, 2).reshape(b, t, c))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, EMBED), nn.Embedding(40, EMBED)
        self.h = nn.ModuleList(GPT2Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(EMBED, eps=1e-5)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)

    def logical(self, of):
        """The tensors of the plan from `of(parameter)`, by name: products there are [in, out], heads are apart."""
        width = EMBED // HEADS
        each = lambda f: torch.stack([f(block) for block in self.h])
        out = {"token_table": of(self.wte.weight), "position_table": of(self.wpe.weight),
               "layer_norm.gain": of(self.ln_f.weight), "layer_norm.bias": of(self.ln_f.bias)}
        for i, part in enumerate("qkv"):
            rows = slice(i * EMBED, (i + 1) * EMBED)
            out["layers.attention.w" + part] = each(lambda m: of(m.c_attn.weight)[rows].T.reshape(EMBED, HEADS, width))
            out["layers.attention.b" + part] = each(lambda m: of(m.c_attn.bias)[rows].reshape(HEADS, width))
        out["layers.attention.wo"] = each(lambda m: of(m.c_proj.weight).T.reshape(HEADS, width, EMBED))
        out["layers.attention.bo"] = each(lambda m: of(m.c_proj.bias))
        for name, norm in (("layer_norm", "ln_1"), ("layer_norm_2", "ln_2")):
            out["layers.%s.gain" % name] = each(lambda m: of(getattr(m, norm).weight))
            out["layers.%s.bias" % name] = each(lambda m: of(getattr(m, norm).bias))
        out["layers.mlp.up"], out["layers.mlp.b_up"] = each(lambda m: of(m.c_fc.weight).T), each(lambda m: of(m.c_fc.bias))
        out["layers.mlp.down"], out["layers.mlp.b_down"] = each(lambda m: of(m.mlp_proj.weight).T), each(lambda m: of(m.mlp_proj.bias))
        return out


class RMSNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


KV_HEADS, WIDTH, FFN, THETA = 2, 10, 52, 10000.0


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.norm_1, self.norm_2 = RMSNorm(EMBED), RMSNorm(EMBED)
        self.q_proj, self.o_proj = linear(EMBED, HEADS * WIDTH), linear(HEADS * WIDTH, EMBED)
        self.k_proj, self.v_proj = linear(EMBED, KV_HEADS * WIDTH), linear(EMBED, KV_HEADS * WIDTH)
        self.gate_proj, self.up_proj, self.down_proj = linear(EMBED, FFN), linear(EMBED, FFN), linear(FFN, EMBED)

    def forward(self, x):
        b, t, _ = x.shape
        h = self.norm_1(x)
        q = self.q_proj(h).view(b, t, HEADS, WIDTH).transpose(1, 2)
        k, v = (p(h).view(b, t, KV_HEADS, WIDTH).transpose(1, 2) for p in (self.k_proj, self.v_proj))
        # Complex numbers turn the pairs (i, i + width / 2): not how a loop over cosines would do it.
        angle = torch.outer(torch.arange(t, dtype=torch.float64), THETA ** (-torch.arange(0, WIDTH, 2) / WIDTH))
        turn = torch.polar(torch.ones_like(angle), angle)
        rotate = lambda z: torch.view_as_real(torch.complex(*z.chunk(2, -1)) * turn).transpose(-1, -2).flatten(-2)
        k, v = (z.repeat_interleave(HEADS // KV_HEADS, 1) for z in (rotate(k), v))
        x = x + self.o_proj(causal_attention(rotate(q), k, v).transpose(1, 2).reshape(b, t, HEADS * WIDTH))
        h = self.norm_2(x)
        return x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, EMBED)
        self.layers = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.norm, self.lm_head = RMSNorm(EMBED), nn.Linear(EMBED, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for block in self.layers:
            x = block(x)
        return self.lm_head(self.norm(x))

    def logical(self, of):
        each = lambda f: torch.stack([f(block) for block in self.layers])
        heads = lambda m, name, n: of(getattr(m, name).weight).T.reshape(EMBED, n, WIDTH)
        return {"token_table": of(self.embed_tokens.weight), "output": of(self.lm_head.weight).T, "rms_norm.gain": of(self.norm.weight),
                "layers.rms_norm.gain": each(lambda m: of(m.norm_1.weight)),
                "layers.rms_norm_2.gain": each(lambda m: of(m.norm_2.weight)),
                "layers.attention.wq": each(lambda m: heads(m, "q_proj", HEADS)),
                "layers.attention.wk": each(lambda m: heads(m, "k_proj", KV_HEADS)),
                "layers.attention.wv": each(lambda m: heads(m, "v_proj", KV_HEADS)),
                "layers.attention.wo": each(lambda m: of(m.o_proj.weight).T.reshape(HEADS, WIDTH, EMBED)),
                "layers.gated_mlp.gate": each(lambda m: of(m.gate_proj.weight).T),
                "layers.gated_mlp.up": each(lambda m: of(m.up_proj.weight).T),
                "layers.gated_mlp.down": each(lambda m: of(m.down_proj.weight).T)}


# ---- training ----

def spread_weights(model, random):
    """Far from the usual start, so that attention is not uniform and every bias and gain counts; exact in float32."""
    for p in model.parameters():
        start = 1.0 if p.dim() == 1 and bool((p == 1).all()) else 0.0
        p.data = (start + 0.12 * torch.randn(p.shape, generator=random)).float().double()


def cosine(step, peak, warmup, end):
    return peak * step / warmup if step <= warmup else end + (peak - end) * (1 + math.cos(math.pi * (step - warmup) / (STEPS - warmup))) / 2


def linear(step, peak, warmup, end):
    return peak * step / warmup if step <= warmup else peak + (end - peak) * (step - warmup) / (STEPS - warmup)


SETTINGS = {
    "gpt2": dict(model=GPT2, seed=5, rate=lambda s: cosine(s, 0.004, 4, 0.0004), betas=(0.9, 0.95), eps=1e-8, decay=0.1, clip=1.0),
    "llama": dict(model=Llama, seed=11, rate=lambda s: linear(s, 0.004, 3, 0.001), betas=(0.9, 0.99), eps=1e-6, decay=0.05, clip=None),
}


def write_tensors(name, tensors):
    header, blob = {}, b""
    for key, value in sorted(tensors.items()):
        raw = value.detach().float().contiguous().numpy().tobytes()
        header[key] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(blob), len(blob) + len(raw)]}
        blob += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + blob)


def train(name, ids, random):
    s = SETTINGS[name]
    model = s["model"]()
    spread_weights(model, random)
    write_tensors(name + "-weights.safetensors", model.logical(lambda p: p.data))
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": s["decay"]},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=s["betas"], eps=s["eps"])
    losses, norms, rates = [], [], []
    for step in range(1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = s["rate"](step)
        inputs, targets = batch_of(ids, step, s["seed"])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        if step == 1:
            expected = {"grad." + k: v.clone() for k, v in model.logical(lambda p: p.grad).items()}
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), s["clip"] or float("inf")).item())
        optimizer.step()
        if step == 1:
            expected.update({"after." + k: v.clone() for k, v in model.logical(lambda p: p.data).items()})
        losses.append(loss.item())
        rates.append(s["rate"](step))
    write_tensors(name + "-expected.safetensors", expected)
    with open(os.path.join(HERE, name + "-expected.json"), "w") as f:
        json.dump({"torch": torch.__version__.split("+")[0], "clip": s["clip"], "beta1": s["betas"][0], "losses": losses,
                   "grad_norms": norms, "rates": rates}, f, indent=1)
        f.write("\n")
    print(name, losses)


random = torch.Generator().manual_seed(20)
ids = make_tokens(random)
for name in SETTINGS:
    train(name, ids, random)
