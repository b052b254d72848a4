// Converts DLPack's element types to DType, for arrays of other libraries. Replica::Dlpack converts DType to
// DLPack. Pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "core/tensor/tensor.h"

namespace tensorcast::client {

// `code` is a DLDataTypeCode of DLPack 1.1. nullopt for a type that safetensors has no name for.
std::optional<DType> DTypeOfDlpack(uint8_t code, uint8_t bits);

}  // namespace tensorcast::client
