// Changes elements of a block. nvcc compiles this text for the change kernel. A host compiler compiles the
// same text for the fake device, for the tests and for the stand-in of CUDA. core/difference/FORMAT.md
// describes the steps.
//
// Threading: the lanes of a block may run at the same time, because no element occurs twice. No errors.
// Private to this folder and to the test doubles of the hardware.
#pragma once

#include <concepts>
#include <cstdint>

#include "core/device/host_device.h"
#include "core/difference/element_order.h"

namespace tensorcast {

// As ElementChanges (device_runtime.h), with pointers that are valid on the GPU or host that does the work.
struct ElementBlock {
  void* begin = nullptr;
  const uint16_t* places = nullptr;
  const void* operands = nullptr;
  uint32_t count = 0;  // number of places
  uint32_t elements = 0;
  uint32_t width = 1;
  bool steps = false;  // true: the operands are steps; false: they are values
};

namespace internal {

template <std::unsigned_integral U>
TENSORCAST_HOST_DEVICE inline void ChangeElementsOf(const ElementBlock& block, uint32_t lane,
                                                    uint32_t lanes) {
  U* const elements = static_cast<U*>(block.begin);
  const auto* const steps = static_cast<const uint8_t*>(block.operands);
  const auto* const values = static_cast<const U*>(block.operands);
  for (uint32_t i = lane; i < block.count; i += lanes) {
    const uint32_t place = block.places[i];
    // The places may come from a damaged difference.
    if (place >= block.elements) continue;
    elements[place] = block.steps ? TakeOneStep<U>(elements[place], steps[i]) : values[i];
  }
}

}  // namespace internal

// Makes the changes of one lane: every `lanes`-th change, beginning with number `lane`. REQUIRES: the
// addresses are multiples of the width, and the width is 1, 2, 4 or 8.
TENSORCAST_HOST_DEVICE inline void ChangeElements(const ElementBlock& block, uint32_t lane, uint32_t lanes) {
  switch (block.width) {
    case 1:
      return internal::ChangeElementsOf<uint8_t>(block, lane, lanes);
    case 2:
      return internal::ChangeElementsOf<uint16_t>(block, lane, lanes);
    case 4:
      return internal::ChangeElementsOf<uint32_t>(block, lane, lanes);
    default:
      return internal::ChangeElementsOf<uint64_t>(block, lane, lanes);
  }
}

}  // namespace tensorcast
