/* plc new NAME: writes NAME.plan, a small language model that trains at once, on its own text. */
#include "driver/options.h"

#include <errno.h>

/* `@` stands for the name. */
static const char program_text[] =
    "# A small language model over bytes. Train it:   plc run @.plan\n"
    "# Then ask it for text:                          ./@ sample --prompt \"dim\"\n"
    "\n"
    "import nn\n"
    "\n"
    "model Small {\n"
    "    dim layers = 2, embed = 64, head = 4, vocab = 256, seq = 64\n"
    "    dim head_dim = embed / head\n"
    "    dim ffn      = 4 * embed\n"
    "\n"
    "    input  tokens: int[batch, seq]\n"
    "    target labels: int[batch, seq] = next(tokens)\n"
    "\n"
    "    weight token_table: [vocab, embed] = normal(0.02)\n"
    "    x = lookup(token_table, tokens, over vocab)\n"
    "    repeat layers {\n"
    "        x = x + nn.attention(nn.rms_norm(x, embed), embed -> (head, head_dim), causal = true, theta = 10000)\n"
    "        x = x + nn.mlp(nn.rms_norm(x, embed), embed -> ffn, gelu)\n"
    "    }\n"
    "    weight output: [embed, vocab] = normal(0.02)\n"
    "    logits = dot(nn.rms_norm(x, embed), output, over embed)\n"
    "    loss   = cross_entropy(logits, labels, over vocab)\n"
    "}\n"
    "\n"
    "train {\n"
    "    # your own text: text(\"corpus/*.txt\"); the batch counts sequences in one step, over all ranks\n"
    "    model     Small\n"
    "    data      text(\"@.plan\")\n"
    "    batch     16\n"
    "    steps     200\n"
    "    optimizer adamw(lr = cosine(0.003, warmup = 20, end = 0.0003), weight_decay = 0.1)\n"
    "    clip      1.0\n"
    "    save      every 100 to \"@-checkpoints\" keep 2\n"
    "    seed      1\n"
    "}\n"
    "\n"
    "plan single { microbatch 8 }\n"
    "\n"
    "plan replicas {\n"
    "    mesh data = 2\n"
    "    batch on data\n"
    "}\n";

int command_new(Session *s, const Options *options) {
    const char *name = options->arguments[0];
    size_t length = strlen(name);
    if (length > 5 && !strcmp(name + length - 5, ".plan")) length -= 5;
    for (size_t i = 0; i < length; i++) {
        bool ok = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
                  (name[i] >= '0' && name[i] <= '9') || name[i] == '_' || (name[i] == '-' && i);
        if (ok) continue;
        fprintf(stderr, "plc: `%s` cannot name a program: use letters, digits, `_` and `-`\n", name);
        return EXIT_USAGE;
    }
    const char *stem = arena_strndup(s->arena, name, length), *path = arena_printf(s->arena, "%s.plan", stem);
    Text text = {.arena = s->arena};
    for (const char *at = program_text; *at; at++) {
        if (*at == '@')
            text_puts(&text, stem);
        else
            text_add(&text, at, 1);
    }
    FILE *out = fopen(path, "wx");
    bool ok = out && fputs(text.at, out) >= 0;
    if (out && fclose(out)) ok = false;
    if (!ok) {
        Diag *d = diag_error(s, "P0821", (Span){0, 0, 0}, "`%s` cannot be written: %s", path, strerror(errno));
        if (errno == EEXIST) diag_help(d, "choose another name; nothing was changed");
        return EXIT_ENVIRONMENT;
    }
    printf("wrote %s: train it with `plc run %s`\n", path, path);
    return EXIT_DONE;
}
