#include "core/device/ipc_format.h"

#include <gtest/gtest.h>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/ids.h"

namespace tensorcast::ipc_format_test {
namespace {

constexpr char kProcess[] = "01234567-89ab-4cde-8f01-23456789abcd";
constexpr char kMemory[] = "fedcba98-7654-4321-8fed-cba987654321";

const FakeIpcFields kFake = {.process = kProcess, .pid = 0x0001e240, .fd = 258, .memory = kMemory};

// The worked example of FORMAT.md.
TEST(IpcFormat, FakeIpcHandle_EncodesToGoldenBytes) {
  EXPECT_EQ(absl::BytesToHexString(EncodeFakeIpc(kFake)),
            "5443443146"
            "30313233343536372d383961622d346364652d386630312d323334353637383961626364"
            "40e20100"
            "02010000"
            "66656463626139382d373635342d343332312d386665642d636261393837363534333231");
}

TEST(IpcFormat, CudaIpcHandle_EncodesToGoldenBytes) {
  const std::string handle(64, '\x07');
  EXPECT_EQ(EncodeCudaIpc({.process = kProcess, .handle = handle}), absl::StrCat("TCD1C", kProcess, handle));
}

TEST(IpcFormat, IpcHandles_SurviveRoundTrip) {
  EXPECT_EQ(DecodeFakeIpc(EncodeFakeIpc(kFake)).value_or(FakeIpcFields{}), kFake);
  const CudaIpcFields cuda = {.process = kProcess, .handle = std::string(64, '\0')};
  EXPECT_EQ(DecodeCudaIpc(EncodeCudaIpc(cuda)).value_or(CudaIpcFields{}), cuda);
}

TEST(IpcFormat, DecodeIpc_RefusesOtherLengthsAndOtherBackend) {
  const std::string fake = EncodeFakeIpc(kFake);
  const std::string cuda = EncodeCudaIpc({.process = kProcess, .handle = std::string(64, 'h')});
  for (size_t length = 0; length < fake.size(); ++length) {
    EXPECT_FALSE(DecodeFakeIpc(fake.substr(0, length)).ok());
  }
  for (size_t length = 0; length < cuda.size(); ++length) {
    EXPECT_FALSE(DecodeCudaIpc(cuda.substr(0, length)).ok());
  }
  EXPECT_FALSE(DecodeFakeIpc(fake + "x").ok());
  EXPECT_FALSE(DecodeCudaIpc(cuda + "x").ok());
  EXPECT_FALSE(DecodeFakeIpc(cuda).ok());
  EXPECT_FALSE(DecodeCudaIpc(fake).ok());
}

TEST(IpcFormat, DecodeIpc_RefusesOtherVersionAndInvalidUuid) {
  std::string version = EncodeFakeIpc(kFake);
  version[3] = '2';
  EXPECT_FALSE(DecodeFakeIpc(version).ok());
  std::string path = EncodeFakeIpc(kFake);
  path[path.size() - 3] = '/';
  EXPECT_FALSE(DecodeFakeIpc(path).ok());
  std::string process = EncodeCudaIpc({.process = kProcess, .handle = std::string(64, 'h')});
  process[5] = '\0';
  EXPECT_FALSE(DecodeCudaIpc(process).ok());
}

TEST(IpcFormat, ThisProcessToken_StaysTheSame) {
  EXPECT_EQ(ThisProcessToken().size(), kUuidChars);
  EXPECT_EQ(ThisProcessToken(), ThisProcessToken());
}

}  // namespace
}  // namespace tensorcast::ipc_format_test
