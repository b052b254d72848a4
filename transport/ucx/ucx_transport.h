// The UCX transport: pulls between hosts by UCX (openucx.org). One instance is one lane, with its own UCP
// context, worker and progress thread.
//
//   kMessages  "ucx"      active messages, received straight into the destination
//   kRma       "ucx-rma"  one-sided reads of the source's registered memory
//
// Both lanes are for RDMA networks. UCX over TCP is only for tests.
//
// Thread-safe. Callbacks run on the progress thread. A forked child process must not use the transport.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "transport/transport.h"

namespace tensorcast::transport {

enum class UcxLane : uint8_t { kMessages, kRma };

// The lane's name: "ucx", "ucx-rma".
std::string_view UcxLaneName(UcxLane lane);

// OK if this host has an RDMA device, else UNAVAILABLE. `devices`: the kernel's folder of RDMA devices.
absl::Status RequireRdmaDevice(const std::string& devices = "/sys/class/infiniband");

struct UcxOptions {
  UcxLane lane = UcxLane::kMessages;
  // "host:port" to serve on; port 0: any free port. The network must be trusted, because crafted bytes can
  // attack UCX (README.md). Empty: this transport only receives.
  std::string listen = "127.0.0.1:0";
  // The host that receivers connect to; empty: the host of `listen`. Must not be empty if `listen` is a
  // wildcard address.
  std::string advertise_host;
  // False: UCX uses only RDMA devices. True: UCX uses only TCP, and also listens on a second, free port for
  // the image bytes.
  bool over_tcp = false;
  // GPUs with memory that the lane ucx-rma reads and writes in place, if UCX supports this. Null: none. Must
  // outlive the transport.
  DeviceRuntime* devices = nullptr;
  // Threads that read images that are not in place.
  int serving_threads = 4;
  // Max time that the end of a pull waits for operations in flight. After this time the connection is closed
  // by force.
  absl::Duration drain_timeout = absl::Milliseconds(500);
  // Max time to connect, even if the context's deadline is later.
  absl::Duration connect_timeout = absl::Seconds(10);
  uint64_t request_bytes = uint64_t{4} << 20;  // max bytes of one request or remote read
  // A pull has at most about request_bytes * requests_in_flight bytes in flight.
  uint32_t requests_in_flight = 16;
};

class UcxTransport : public Transport {
 public:
  // UNAVAILABLE if the host has no network of the lane's kind, or the transport cannot listen on the address;
  // INVALID_ARGUMENT for malformed options.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const UcxOptions& options);
  // REQUIRES: its pulls and servings are destroyed; not on the progress thread.
  ~UcxTransport() override;

  std::string_view name() const override;
  absl::Status RegisterMemory(std::byte* base, uint64_t bytes) override;
  LaneMemory memory() const override;
  bool counts_served() const override;
  absl::StatusOr<std::shared_ptr<void>> RegisterDevice(DevicePtr base, uint64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Serving>> Serve(std::shared_ptr<ServedImage> image,
                                                 std::string_view receiver) override;
  absl::StatusOr<std::unique_ptr<Pull>> Connect(const RequestContext& context,
                                                std::string_view descriptor) override;

  // The "host:port" that receivers connect to; empty if this transport only receives.
  const std::string& address() const;

 private:
  struct State;
  explicit UcxTransport(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::transport
