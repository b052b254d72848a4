// The bytes of IpcHandle::opaque (FORMAT.md). Private to this folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace tensorcast {

// A handle of the cuda backend.
struct CudaIpcFields {
  std::string process;  // ThisProcessToken() of the exporter
  std::string handle;   // the 64 bytes of a cudaIpcMemHandle_t
  friend bool operator==(const CudaIpcFields&, const CudaIpcFields&) = default;
};

// A handle of the fake backend: the exporter's process and memfd, and the id that the memfd's name must have.
struct FakeIpcFields {
  std::string process;
  uint32_t pid = 0;
  uint32_t fd = 0;
  std::string memory;  // UUID of the allocation, part of the memfd's name
  friend bool operator==(const FakeIpcFields&, const FakeIpcFields&) = default;
};

// REQUIRES: each UUID has kUuidChars characters; the CUDA handle has 64 bytes.
std::string EncodeCudaIpc(const CudaIpcFields& fields);
std::string EncodeFakeIpc(const FakeIpcFields& fields);

// INVALID_ARGUMENT for bytes that this backend's encoder never makes, such as another backend's handle.
absl::StatusOr<CudaIpcFields> DecodeCudaIpc(std::string_view opaque);
absl::StatusOr<FakeIpcFields> DecodeFakeIpc(std::string_view opaque);

// A random UUID of this process. Process ids would repeat in containers.
const std::string& ThisProcessToken();

}  // namespace tensorcast
