// Weights and steps as training makes them, for tests and benchmarks of sizes and speeds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/artifact/layout.h"
#include "core/difference/difference_decoder.h"
#include "core/difference/difference_encoder.h"

namespace tensorcast::testing {

// The bits of the bf16 that is nearest to `value`.
uint16_t ToBf16(float value);
float FromBf16(uint16_t bits);

// Fills `bytes` with bf16 elements that are distributed as N(0, 0.02). REQUIRES: an even number of bytes.
void FillWeights(std::span<std::byte> bytes, uint64_t seed);

// Moves a random part of the bf16 elements by one representable value up or down, and a few of them by two or
// three. `changed` is the part, 0 to 1.
void StepByUlps(std::span<std::byte> bytes, double changed, uint64_t seed);

// Moves all elements as mixed-precision training does: `bytes` are roundings of fp32 master weights, which
// move by N(0, learning_rate) and are rounded again.
void StepMasterWeights(std::span<std::byte> bytes, float learning_rate, uint64_t seed);

struct StepStatistics {
  uint64_t elements = 0;
  uint64_t changed = 0;
  double bound_bytes = 0;  // N h(p) + changed H0(steps)

  double changed_part() const { return static_cast<double>(changed) / static_cast<double>(elements); }
};
// Compares two rows of bf16 elements.
StepStatistics CompareSteps(std::span<const std::byte> base, std::span<const std::byte> target);

// A layout of these tensors, named t0, t1, ... `chunk_bytes` 0: the usual chunk size.
struct TensorSpec {
  DType dtype = DType::kBF16;
  uint64_t elements = 0;
};
ImageLayout LayoutOfTensors(const std::vector<TensorSpec>& tensors, uint64_t chunk_bytes = 0);

// Encodes all chunks on one thread.
std::optional<EncodedDifference> EncodeImage(const DifferenceGeometry& geometry,
                                             std::span<const std::byte> base,
                                             std::span<const std::byte> target);
// The records of a difference, each in one piece.
std::vector<std::string> RecordsOf(const EncodedDifference& difference);
// The image of a difference, in one piece.
std::vector<std::byte> ImageOf(const EncodedDifference& difference);

// Turns the base's chunk at `bytes` into the target's as a GPU does: by lists of changes, in a room of
// `room_bytes`, with the function of the device's kernel. Errors are those of ChangeLists.
absl::Status ApplyLists(DecoderPath path, uint32_t chunk, size_t room_bytes, std::span<std::byte> bytes);

}  // namespace tensorcast::testing
