#include "transport/ucx/ucx_worker.h"

#include <gmock/gmock.h>

#include "base/address.h"
#include "transport/ucx/endpoint_cache.h"
#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_transport.h"

namespace tensorcast::transport::ucx_worker_test {
namespace {

TEST(UcxStatus, LostPeer_IsUnavailableForEveryUcxCode) {
  for (ucs_status_t status : {UCS_ERR_CONNECTION_RESET, UCS_ERR_ENDPOINT_TIMEOUT, UCS_ERR_UNREACHABLE,
                              UCS_ERR_NOT_CONNECTED, UCS_ERR_IO_ERROR, UCS_ERR_REJECTED}) {
    EXPECT_EQ(UcxStatus(status, "x").code(), absl::StatusCode::kUnavailable) << status;
  }
}

TEST(UcxStatus, UcxError_IsNeverOkOrInvalidArgument) {
  EXPECT_TRUE(UcxStatus(UCS_OK, "x").ok());
  for (int status = UCS_ERR_LAST; status < 0; ++status) {
    const absl::StatusCode code = UcxStatus(static_cast<ucs_status_t>(status), "x").code();
    EXPECT_NE(code, absl::StatusCode::kOk) << status;
    EXPECT_NE(code, absl::StatusCode::kInvalidArgument) << status;
  }
}

TEST(UcxStatus, UcxStatusMessage_SaysWhatWasTried) {
  EXPECT_THAT(UcxStatus(UCS_ERR_UNREACHABLE, "connecting to a").message(),
              ::testing::StartsWith("connecting to a: "));
}

TEST(UcxWorker, UcxWorker_RefusesUnknownConnectionManager) {
  for (const char* missing : {"no_such_manager", "cma"}) {  // the second is not a connection manager
    const absl::Status refused =
        UcxWorker::Create({.tls = "tcp", .connection_manager = missing, .net_devices = "lo"}).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
    EXPECT_THAT(refused.message(), ::testing::HasSubstr(missing));
  }
  EXPECT_TRUE(UcxWorker::Create({.tls = "tcp", .connection_manager = "tcp", .net_devices = "lo"}).ok());
}

// A lane over RDMA has no TCP listener beside it: where only TCP can be opened, the lane cannot be opened.
TEST(UcxWorker, RdmaWorker_DoesNotFallBackToTcp) {
  if (RequireRdmaDevice().ok()) GTEST_SKIP() << "this host has an RDMA device";
  const absl::Status refused =
      UcxWorker::Create({.tls = "tcp", .connection_manager = "rdmacm", .net_devices = "lo"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
}

// UCX is asked for the memory of GPUs with those of its modules that are there, perhaps none.
TEST(UcxWorker, UcxWorker_StartsWithoutCudaModules) {
  const auto asked = UcxWorker::Create({.tls = "tcp", .net_devices = "lo", .rma = true, .devices = true});
  ASSERT_TRUE(asked.ok()) << asked.status();
  const auto not_asked = UcxWorker::Create({.tls = "tcp", .net_devices = "lo", .rma = true});
  ASSERT_TRUE(not_asked.ok()) << not_asked.status();
  EXPECT_FALSE((*not_asked)->reaches_devices());
}

TEST(UcxTransport, UcxOverTcp_ReachesOnlyHostMemory) {
  const auto transport = UcxTransport::Create({.lane = UcxLane::kRma, .over_tcp = true});
  ASSERT_TRUE(transport.ok()) << transport.status();
  EXPECT_EQ((*transport)->memory(), LaneMemory::kHost);
  EXPECT_EQ((*transport)->RegisterDevice({.device = 0, .address = 0x1000}, 4096).status().code(),
            absl::StatusCode::kUnimplemented);
}

// The worker outlives the cache: a timer of the cache's that is left in it would call what is gone.
TEST(EndpointCache, ShutdownOfEndpointCache_LeavesNoTimerBehind) {
  const std::unique_ptr<UcxWorker> worker = *UcxWorker::Create({.tls = "tcp", .net_devices = "lo"});
  EndpointCache cache(worker.get(), {});
  worker->Run([&] {
    cache.Give("peer", *UcxEndpoint::Connect(worker.get(), *ResolveAddress({"127.0.0.1", 1})));
    EXPECT_TRUE(worker->queue().has_timers()) << "nothing was tested";
    cache.Shutdown();
    EXPECT_FALSE(worker->queue().has_timers());
  });
  worker->WaitForEndpoints();
}

}  // namespace
}  // namespace tensorcast::transport::ucx_worker_test
