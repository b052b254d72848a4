#include "core/device/ipc_format.h"

#include "absl/log/check.h"
#include "absl/strings/str_cat.h"
#include "base/request_context.h"

namespace tensorcast {
namespace {

constexpr std::string_view kCudaMagic = "TCD1C";
constexpr std::string_view kFakeMagic = "TCD1F";
constexpr size_t kCudaHandleBytes = 64;

std::string LittleEndian(uint32_t value) {
  std::string bytes;
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

uint32_t ReadLittleEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << 8 * i;
  return value;
}

bool IsUuidText(std::string_view text) {
  return text.size() == kUuidChars && text.find_first_not_of("0123456789abcdef-") == std::string_view::npos;
}

absl::Status Malformed(std::string_view backend, size_t bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("not an IPC handle of the ", backend, " backend (", bytes,
                   " bytes): exporter and importer must use the same device backend"));
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
  return absl::StrCat(kFakeMagic, fields.process, LittleEndian(fields.pid), LittleEndian(fields.fd),
                      fields.memory);
}

absl::StatusOr<CudaIpcFields> DecodeCudaIpc(std::string_view opaque) {
  if (opaque.size() != kCudaMagic.size() + kUuidChars + kCudaHandleBytes || !opaque.starts_with(kCudaMagic)) {
    return Malformed("cuda", opaque.size());
  }
  const std::string_view process = opaque.substr(kCudaMagic.size(), kUuidChars);
  if (!IsUuidText(process)) return Malformed("cuda", opaque.size());
  return CudaIpcFields{.process = std::string(process),
                       .handle = std::string(opaque.substr(kCudaMagic.size() + kUuidChars))};
}

absl::StatusOr<FakeIpcFields> DecodeFakeIpc(std::string_view opaque) {
  if (opaque.size() != kFakeMagic.size() + 2 * kUuidChars + 8 || !opaque.starts_with(kFakeMagic)) {
    return Malformed("fake", opaque.size());
  }
  const std::string_view process = opaque.substr(kFakeMagic.size(), kUuidChars);
  const std::string_view numbers = opaque.substr(kFakeMagic.size() + kUuidChars, 8);
  const std::string_view memory = opaque.substr(opaque.size() - kUuidChars);
  if (!IsUuidText(process) || !IsUuidText(memory)) return Malformed("fake", opaque.size());
  return FakeIpcFields{.process = std::string(process),
                       .pid = ReadLittleEndian(numbers),
                       .fd = ReadLittleEndian(numbers.substr(4)),
                       .memory = std::string(memory)};
}

const std::string& ThisProcessToken() {
  static const std::string* const token = new std::string(NewUuid());
  return *token;
}

}  // namespace tensorcast
