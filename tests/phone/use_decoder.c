/* Uses romou_decode, for tests:     use_decoder FOLDER ID ...
 * Reads 21 tokens of a decoder with room for 100 and 256 words, in several ways, and calls it wrongly; prints the code of each call and the successor or
 * the error. */
#include <stdio.h>
#include <stdlib.h>

#include "romou.h"

#define COUNT 21

static void told(const char* what, romou_status status, const int64_t* next) {
  status == ROMOU_OK ? printf("%s: 0 %lld\n", what, (long long)*next) : printf("%s: %d %s\n", what, (int)status, romou_error());
}

static int64_t largest(const float* logits) {
  int64_t best = 0;
  for (int64_t i = 1; i < 256; ++i) best = logits[i] > logits[best] ? i : best;
  return best;
}

int main(int argc, char** argv) {
  romou_model* model = NULL;
  int64_t ids[80] = {0}, next = 0;
  const int64_t unknown[] = {1, 256}, negative = -1;
  float logits[256];
  void* place = NULL;
  if (argc != 2 + COUNT || romou_open(argv[1], NULL, &model) != ROMOU_OK || romou_input_count(model) != 0 || romou_output_count(model) != 1) return 1;
  for (int i = 0; i < COUNT; ++i) ids[i] = atoll(argv[2 + i]);
  told("at once", romou_decode(model, ids, COUNT, &next), &next);
  if (romou_get(model, "logits", logits, sizeof logits) != ROMOU_OK || romou_map(model, "logits", &place) != ROMOU_OK) return 1;
  next = largest(logits);
  told("largest logit", ROMOU_OK, &next);
  next = largest(place);
  told("mapped", ROMOU_OK, &next);
  told("decode mapped", romou_decode(model, ids, 1, &next), &next);
  if (romou_unmap(model, "logits") != ROMOU_OK) return 1;
  told("too many", romou_decode(model, ids, 80, &next), &next);
  told("unknown token", romou_decode(model, unknown, 2, &next), &next);
  told("negative token", romou_decode(model, &negative, 1, &next), &next);
  told("no token", romou_decode(model, ids, 0, &next), &next);
  told("NULL tokens", romou_decode(model, NULL, 1, &next), &next);
  told("NULL next", romou_decode(model, ids, 1, NULL), &next);
  told("NULL model", romou_decode(NULL, ids, 1, &next), &next);
  told("rewind too far", romou_rewind(model, COUNT + 1), &next);
  told("run", romou_run(model), &next);
  told("set", romou_set(model, "input_ids", ids, 8), &next);
  if (romou_rewind(model, COUNT - 1) != ROMOU_OK) return 1;
  told("again", romou_decode(model, ids + COUNT - 1, 1, &next), &next);
  if (romou_rewind(model, 0) != ROMOU_OK) return 1;
  for (int i = 0; i < COUNT; ++i) {
    if (romou_decode(model, ids + i, 1, &next) != ROMOU_OK) return 1;
  }
  told("in pieces", ROMOU_OK, &next);
  if (romou_rewind(model, 1) != ROMOU_OK) return 1;
  for (int i = 1; i < COUNT; i += 2) {
    if (romou_decode(model, ids + i, 2, &next) != ROMOU_OK) return 1;
  }
  told("in twos", ROMOU_OK, &next);
  romou_close(model);
  return 0;
}
