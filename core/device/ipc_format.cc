#include "core/device/ipc_format.h"

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/byte_codec.h"
#include "base/ids.h"

namespace tensorcast {
namespace {

// The last letter says which backend wrote it. Each backend refuses the other's handle before its bytes
// mean anything.
constexpr std::string_view kCudaMagic = "TCD1C";
constexpr std::string_view kFakeMagic = "TCD1F";
constexpr size_t kCudaHandleBytes = 64;

absl::Status Malformed(std::string_view backend, size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("decode an IPC handle of ", bytes, " bytes: the handle is not from the ", backend,
                   " backend; run exporter and importer with the same device backend"));
}

}  // namespace

std::string EncodeCudaIpc(const CudaIpcFields& fields) {
  CHECK_EQ(fields.process.size(), kUuidChars);
  CHECK_EQ(fields.handle.size(), kCudaHandleBytes);
  return absl::StrCat(kCudaMagic, fields.process, fields.handle);
}

std::string EncodeFakeIpc(const FakeIpcFields& fields) {
  CHECK_EQ(fields.process.size(), kUuidChars);
  CHECK_EQ(fields.memory.size(), kUuidChars);
  return ByteWriter()
      .Put(kFakeMagic)
      .Put(fields.process)
      .Put(fields.pid)
      .Put(fields.fd)
      .Put(fields.memory)
      .Take();
}

// The bytes come from another process. Size and letters are checked before any field is read, so no field can
// be short.
absl::StatusOr<CudaIpcFields> DecodeCudaIpc(std::string_view opaque) {
  if (opaque.size() != kCudaMagic.size() + kUuidChars + kCudaHandleBytes || !opaque.starts_with(kCudaMagic)) {
    return Malformed("cuda", opaque.size());
  }
  const std::string_view process = opaque.substr(kCudaMagic.size(), kUuidChars);
  if (!IsUuid(process)) return Malformed("cuda", opaque.size());
  return CudaIpcFields{.process = std::string(process),
                       .handle = std::string(opaque.substr(kCudaMagic.size() + kUuidChars))};
}

absl::StatusOr<FakeIpcFields> DecodeFakeIpc(std::string_view opaque) {
  if (opaque.size() != kFakeMagic.size() + 2 * kUuidChars + 8 || !opaque.starts_with(kFakeMagic)) {
    return Malformed("fake", opaque.size());
  }
  ByteReader reader(opaque.substr(kFakeMagic.size()));
  FakeIpcFields fields;
  fields.process = std::string(reader.GetBytes(kUuidChars));
  fields.pid = reader.Get<uint32_t>();
  fields.fd = reader.Get<uint32_t>();
  fields.memory = std::string(reader.GetBytes(kUuidChars));
  if (!IsUuid(fields.process) || !IsUuid(fields.memory)) return Malformed("fake", opaque.size());
  return fields;
}

const std::string& ThisProcessToken() {
  // Not the process id, which a process of another container may have, too. Never freed, since threads may
  // ask for it while the process ends.
  static const std::string* const token = new std::string(NewUuid());
  return *token;
}

}  // namespace tensorcast
