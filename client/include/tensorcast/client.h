// The client library: what a serving engine or a trainer links to store models and to attach to them.
//
// A Client talks to the store daemon of its own host. Weights are never copied into the client: a Replica
// maps the daemon's memory read-only (host) or opens its IPC handle (GPU), and holds the lease while it
// lives.
//
//   const auto context = RequestContext::Background(absl::Seconds(60));
//   TC_ASSIGN_OR_RETURN(auto client, Client::Connect({.daemon = "unix:/run/tensorcast/daemon.sock"}));
//   TC_ASSIGN_OR_RETURN(auto replica, client->Get(context, "llama-3-8b/prod", {.location = "cpu"}));
//   for (const Tensor& tensor : replica->tensors()) {
//     TC_ASSIGN_OR_RETURN(TensorView view, replica->Find(tensor.name));
//   }
//
// (The macros are base/status.h's. README.md has a whole program, for GPUs too.)
//
// Errors: UNAVAILABLE when the daemon (or, for what it does not know itself, the global store behind it)
// cannot be reached, NOT_FOUND for unknown keys and artifacts, RESOURCE_EXHAUSTED when a pool is full,
// DATA_LOSS when no source has intact bytes, DEADLINE_EXCEEDED and CANCELLED as asked. Only UNAVAILABLE is
// retried, within the deadline, and not where the daemon says that the global store is away for longer than a
// restart takes. Client is thread-safe; Replica is thread-safe for reading.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/replica/transfer_report.h"

namespace tensorcast::client {

// One tensor of an attached replica: zero copies. Valid while its Replica lives.
struct TensorView {
  const Tensor* tensor = nullptr;   // name, dtype, shape, offset, nbytes
  std::span<const std::byte> host;  // host replicas
  DevicePtr device;                 // GPU replicas: in this process's address space
};

// An attached replica: the lease. Destroying it closes the mapping and gives the lease back.
class Replica {
 public:
  virtual ~Replica() = default;
  virtual const std::string& artifact_id() const = 0;
  virtual const std::string& replica_id() const = 0;
  virtual const Location& location() const = 0;
  virtual const Manifest& manifest() const = 0;
  // In the image's order; each is found by its name.
  const std::vector<Tensor>& tensors() const { return manifest().layout().tensors; }
  virtual uint64_t key_revision() const = 0;  // of the key it was asked by; 0 when asked by id
  // The global store did not answer: the key is as the daemon last knew it, and may mean something else by
  // now.
  virtual bool key_unconfirmed() const = 0;
  // NOT_FOUND when the artifact has no tensor of that name.
  virtual absl::StatusOr<TensorView> Find(std::string_view name) const = 0;
  // The whole image of a host replica.
  virtual std::span<const std::byte> image() const = 0;
  // How it came here; nullopt when it was already there.
  virtual const std::optional<TransferReport>& transfer() const = 0;
  // The daemon went away: bytes stay readable, but a new Get is needed for a lease.
  virtual bool lost() const = 0;
};

struct GetOptions {
  std::string location = "cpu";  // "cpu", "gpu:N", "disk" (made, but not attached)
  std::string lane;              // force "local", "ucx", "ucx-rma" or "disk"; empty: the fastest
  bool wait_for_space = false;
  bool attach = true;
  std::function<void(const TransferProgress&)> on_progress;  // on a library thread
};

struct PutOptions {
  std::optional<std::string> key;
  std::optional<uint64_t> expected_revision;  // compare-and-swap; 0: the key must not exist yet
  bool durable = false;                       // packed to disk before Put returns
  uint64_t chunk_bytes = 0;                   // 0: 16 MiB
  std::string location = "cpu";
  bool wait_for_space = false;
  bool verify = false;  // of an import: read the files twice; ABORTED when something wrote them meanwhile
  std::function<void(const TransferProgress&)> on_progress;
};

struct PutResult {
  std::string artifact_id;
  std::string replica_id;
  bool existed = false;  // the same content was already stored
  uint64_t key_revision = 0;
  std::optional<TransferReport> transfer;
};

// A tensor to be put, borrowed for the call.
struct PutTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;
  std::span<const std::byte> bytes;
};

struct KeyInfo {
  std::string name;
  std::string artifact_id;
  uint64_t revision = 0;
  absl::Time updated;
  bool deleted = false;      // in watches
  bool unconfirmed = false;  // when resolved: as Replica::key_unconfirmed
};

struct ClientOptions {
  std::string daemon;  // unix:/path or host:port
  absl::Duration connect_timeout = absl::Seconds(5);
  Cancellation cancellation;         // of Connect alone; calls have their contexts
  DeviceRuntime* devices = nullptr;  // to open GPU replicas; may be null; must outlive the client
  // What otel::InitTelemetry (otel/sdk/telemetry.h) returned, so that it lasts as long as the client and what
  // it began, and then sends what is left. Null: telemetry is off, or the program's own affair.
  std::shared_ptr<void> telemetry = nullptr;
};

// A get that runs in the background.
class PendingGet {
 public:
  virtual ~PendingGet() = default;  // cancels it when it still runs
  // Blocks to the end or the deadline (DEADLINE_EXCEEDED; the get goes on, Wait can be called again). Once it
  // returned a replica or another error, it is spent.
  virtual absl::StatusOr<std::unique_ptr<Replica>> Wait(absl::Time deadline) = 0;
  virtual void Cancel() = 0;
};

class Client {
 public:
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  virtual ~Client() = default;

  // `artifact` is a key or an artifact id.
  virtual absl::StatusOr<std::unique_ptr<Replica>> Get(const RequestContext& context,
                                                       std::string_view artifact,
                                                       const GetOptions& options) = 0;
  virtual std::unique_ptr<PendingGet> StartGet(const RequestContext& context, std::string_view artifact,
                                               const GetOptions& options) = 0;

  // Copies the tensors once, into a sealed memfd that is handed to the daemon.
  virtual absl::StatusOr<PutResult> Put(const RequestContext& context, std::span<const PutTensor> tensors,
                                        const std::map<std::string, std::string>& metadata,
                                        const PutOptions& options) = 0;
  // The daemon reads the files itself: a .safetensors file or a sharded directory on its host.
  virtual absl::StatusOr<PutResult> Import(const RequestContext& context, const std::string& path,
                                           const PutOptions& options) = 0;

  virtual absl::StatusOr<KeyInfo> BindKey(const RequestContext& context, std::string_view key,
                                          std::string_view artifact_id,
                                          std::optional<uint64_t> expected_revision) = 0;
  virtual absl::StatusOr<KeyInfo> ResolveKey(const RequestContext& context, std::string_view key) = 0;
  virtual absl::Status DeleteKey(const RequestContext& context, std::string_view key,
                                 std::optional<uint64_t> expected_revision) = 0;
  virtual absl::StatusOr<std::vector<KeyInfo>> ListKeys(const RequestContext& context,
                                                        std::string_view prefix) = 0;
  // Calls `on_key` for the keys as they are, then for each change, until the context ends or it returns
  // false. Reconnects by itself.
  virtual absl::Status WatchKeys(const RequestContext& context, std::string_view prefix,
                                 std::function<bool(const KeyInfo&)> on_key) = 0;
};

}  // namespace tensorcast::client
