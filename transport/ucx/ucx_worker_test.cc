#include "transport/ucx/ucx_worker.h"

#include <gmock/gmock.h>

namespace tensorcast::transport {
namespace {

TEST(UcxStatus, ALostPeerIsUnavailableHoweverUcxNoticed) {
  for (ucs_status_t status : {UCS_ERR_CONNECTION_RESET, UCS_ERR_ENDPOINT_TIMEOUT, UCS_ERR_UNREACHABLE,
                              UCS_ERR_NOT_CONNECTED, UCS_ERR_IO_ERROR, UCS_ERR_REJECTED}) {
    EXPECT_EQ(UcxStatus(status, "x").code(), absl::StatusCode::kUnavailable) << status;
  }
}

TEST(UcxStatus, NoCodeIsOkOrInvalidArgumentButSuccess) {
  EXPECT_TRUE(UcxStatus(UCS_OK, "x").ok());
  for (int status = UCS_ERR_LAST; status < 0; ++status) {
    const absl::StatusCode code = UcxStatus(static_cast<ucs_status_t>(status), "x").code();
    EXPECT_NE(code, absl::StatusCode::kOk) << status;
    EXPECT_NE(code, absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(UcxStatus, TheMessageSaysWhatWasTried) {
  EXPECT_THAT(UcxStatus(UCS_ERR_UNREACHABLE, "connecting to a").message(),
              testing::StartsWith("connecting to a: "));
}

}  // namespace
}  // namespace tensorcast::transport
