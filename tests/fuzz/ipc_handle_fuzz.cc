// The opaque bytes of a device memory handle, of either backend.
#include "absl/log/check.h"
#include "core/device/ipc_format.h"
#include "tests/fuzz/fuzz_target.h"

namespace tensorcast::fuzz {

void TestOneInput(std::string_view input) {
  const absl::StatusOr<CudaIpcFields> cuda = DecodeCudaIpc(input);
  const absl::StatusOr<FakeIpcFields> fake = DecodeFakeIpc(input);
  CHECK(!cuda.ok() || !fake.ok()) << "one handle of both backends";
  if (cuda.ok()) CHECK(EncodeCudaIpc(*cuda) == input);
  if (fake.ok()) CHECK(EncodeFakeIpc(*fake) == input);
}

std::vector<std::string> Seeds() {
  const std::string uuid = "01234567-89ab-cdef-0123-456789abcdef";
  return {EncodeCudaIpc({.process = uuid, .handle = std::string(64, 'h')}),
          EncodeFakeIpc({.process = uuid, .pid = 42, .fd = 7, .memory = uuid})};
}

}  // namespace tensorcast::fuzz
