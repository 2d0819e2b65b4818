/* Groups of dimensions in one operand, and packing: see strided.h. */
#include "cpu/strided.h"

#include <string.h>

enum { MAX_PANEL = 64 };

Strided strided_of(const PrtProductDim *dims, int n, Operand operand) {
    Strided s = {0};
    for (int i = 0; i < n; i++) {
        int64_t stride = operand == OPERAND_A ? dims[i].a : operand == OPERAND_B ? dims[i].b : dims[i].c;
        if (dims[i].extent == 1) continue;
        if (s.n > 0 && s.stride[s.n - 1] == dims[i].extent * stride) {
            s.extent[s.n - 1] *= dims[i].extent;
            s.stride[s.n - 1] = stride;
        } else {
            s.extent[s.n] = dims[i].extent;
            s.stride[s.n++] = stride;
        }
    }
    if (s.n == 0) s = (Strided){.n = 1, .extent = {1}, .stride = {1}};
    return s;
}

int64_t strided_offset(const Strided *s, int64_t point) {
    int64_t offset = 0;
    for (int i = s->n - 1; i > 0; i--) {
        offset += point % s->extent[i] * s->stride[i];
        point /= s->extent[i];
    }
    return offset + point * s->stride[0];
}

PackSource pack_source(Strided lane, Strided depth, PrtPackFunction *const pack[3], int64_t panel, int64_t lanes,
                       int element) {
    PrtPack kind = strided_last(&lane) == 1    ? PRT_PACK_LANES
                   : strided_last(&depth) == 1 ? PRT_PACK_DEPTH
                                               : PRT_PACK_ANY;
    return (PackSource){.lane = lane,
                        .depth = depth,
                        .pack = pack[kind],
                        .panel = panel,
                        .lanes = lanes,
                        .kind = kind,
                        .element = element};
}

/* Lanes that do not form one run: through a table of their offsets. */
static void gather_panel(const PackSource *s, const void *base, int64_t lane, int64_t lanes, int64_t k, int64_t n_k,
                         float *out) {
    int64_t offset[MAX_PANEL];
    for (int64_t i = 0; i < lanes; i++) offset[i] = strided_offset(&s->lane, lane + i);
    for (int64_t end = k + n_k; k < end;) {
        int64_t run = prt_min(strided_run(&s->depth, k), end - k), from = strided_offset(&s->depth, k);
        for (int64_t r = 0; r < run; r++, out += s->panel, from += strided_last(&s->depth)) {
            if (s->element == PRT_ELEMENT_F32)
                for (int64_t i = 0; i < lanes; i++) out[i] = ((const float *)base)[from + offset[i]];
            else
                for (int64_t i = 0; i < lanes; i++)
                    out[i] = prt_widen_one(s->element, prt_element(base, s->element, from + offset[i]));
            memset(out + lanes, 0, (size_t)(s->panel - lanes) * sizeof(float));
        }
        k += run;
    }
}

static void pack_panel(const PackSource *s, const void *base, int64_t lane, int64_t lanes, int64_t k, int64_t n_k,
                       float *out) {
    bool scattered = s->kind == PRT_PACK_ANY && s->element != PRT_ELEMENT_F32;
    if (strided_run(&s->lane, lane) < lanes || scattered) {
        gather_panel(s, base, lane, lanes, k, n_k, out);
        return;
    }
    const void *from = prt_element(base, s->element, strided_offset(&s->lane, lane));
    for (int64_t end = k + n_k; k < end;) {
        int64_t run = prt_min(strided_run(&s->depth, k), end - k);
        prt_pack(s->pack, s->element, s->kind == PRT_PACK_DEPTH,
                 prt_element(from, s->element, strided_offset(&s->depth, k)), out, run, strided_last(&s->depth),
                 strided_last(&s->lane), lanes, s->panel);
        out += run * s->panel;
        k += run;
    }
}

void pack_block(const PackSource *source, const void *base, int64_t lane, int64_t n_lanes, int64_t k, int64_t n_k,
                float *out) {
    for (int64_t end = lane + n_lanes; lane < end; lane += source->lanes, out += n_k * source->panel)
        pack_panel(source, base, lane, prt_min(source->lanes, end - lane), k, n_k, out);
}
