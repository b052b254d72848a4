// The client library of TensorCast: programs use it to store models and to attach to stored models. The
// library talks to the store daemon of its own host, and never copies weights into the client. Include only
// this header: it includes all others that a program needs.
//
//   auto client = Client::Connect({.daemon = "unix:/run/tensorcast/client.sock"});
//   if (!client.ok()) return client.status();
//   const auto context = RequestContext::Background(absl::Seconds(60));  // may take a minute from now
//   auto replica = (*client)->Get(context, "llama-3-8b/prod", {.location = "cpu"});
//   if (!replica.ok()) return replica.status();
//   for (const TensorView& tensor : (*replica)->tensors()) {
//     std::cout << tensor.name << ": " << DTypeName(tensor.dtype) << ", " << tensor.nbytes << " bytes at "
//               << tensor.host.data() << "\n";
//   }
//
// Ownership: a Replica is a lease, and may outlive its Client. A call borrows its arguments until it returns.
//
// Threading: Client is thread-safe. All calls block, except StartGet. Callbacks of StartGet and GetAt may run
// on other threads. All other callbacks run on the caller's thread. The library holds no lock during a
// callback.
//
// Time: every deadline (RequestContext::deadline, PendingGet::Wait) is SteadyNow() plus a duration. Setting
// the machine's clock does not move a deadline. KeyInfo::updated is wall time.
//
// Errors:
// - UNAVAILABLE: the daemon cannot be reached.
// - UNAVAILABLE: the call needs the global store, and the daemon cannot reach the global store.
// - NOT_FOUND: an unknown key, artifact or replica.
// - RESOURCE_EXHAUSTED: a pool is full.
// - FAILED_PRECONDITION: the daemon runs on another host, and this process cannot reach its memory.
// - FAILED_PRECONDITION: no device runtime was given for a GPU replica.
// - FAILED_PRECONDITION: a compare-and-swap found another revision.
// - DATA_LOSS: no source has intact bytes.
// - DEADLINE_EXCEEDED, CANCELLED: the context's deadline passed, or the context was cancelled.
//
// The client retries only UNAVAILABLE, within the deadline and for at most ten seconds. It does not retry if
// the daemon reports a long outage of the global store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/device/device_runtime.h"
#include "core/replica/transfer_report.h"
#include "core/tensor/tensor.h"
#include "tensorcast/replica.h"

namespace tensorcast::client {

// The state that all calls of one client share; private to the library.
struct Session;

// PEM files for mutual TLS on connections to host:port. If all fields are empty, the connection is
// unencrypted. The client reads a file again when the file changes.
struct ClientCertificates {
  std::string ca;            // the authorities that are trusted
  std::string certificate;   // this program's certificate, with the operator or the client role
  std::string key;           // private key of `certificate`; must not be readable by every user
  std::string trust_domain;  // of accepted peers; empty: the domain of `certificate`
};

struct ClientOptions {
  // unix:/path, /path or host:port. Empty: TENSORCAST_DAEMON, else the first daemon that listens in
  // $XDG_RUNTIME_DIR/tensorcast, in this user's state folder or in /run/tensorcast. In these folders the
  // daemon's own user connects to daemon.sock, and every other user connects to client.sock.
  std::string daemon;
  ClientCertificates certificates = {};
  absl::Duration connect_timeout = absl::Seconds(5);  // max wait for the answer of a daemon that listens
  // Max time until a daemon listens, for programs that start together with the daemon.
  absl::Duration wait_for_daemon = absl::ZeroDuration();
  Cancellation cancellation;         // cancels only Connect; each call has a context of its own
  DeviceRuntime* devices = nullptr;  // opens GPU replicas; may be null; must outlive the client's replicas
  // The result of StartTelemetry (tensorcast/telemetry.h). The client and its background calls keep it alive.
  // Null: this client keeps no telemetry alive.
  std::shared_ptr<void> telemetry = nullptr;
};

struct GetOptions {
  std::string location = "cpu";  // "cpu", "gpu:N", "disk" (made, but not attached)
  std::string lane;              // use only "local", "ucx", "ucx-rma", "tcp" or "disk"; empty: the fastest
  bool wait_for_space = false;   // if replicas in use fill the pool, wait for space until the deadline
  bool attach = true;            // false: make and describe the replica, but do not map its memory
  // Get only these tensors; empty: all. An entry is a name or a pattern: `*` matches any text, `?` any
  // character, `[a-z]` a listed character, `[!a-z]` any other character. The daemon brings only the missing
  // chunks that hold these tensors. Works only for "cpu". INVALID_ARGUMENT for an entry that matches no
  // tensor.
  std::vector<std::string> tensors = {};
  // Map host memory as writable, for libraries without read-only tensors. Written pages are private copies,
  // which no other process sees. If the pool uses reserved huge pages, and the host has too few free huge
  // pages for a second copy, the mapping is read-only (Replica::writable).
  bool copy_on_write = false;
  // True: the global store must resolve the key now. UNAVAILABLE if the global store does not answer. False:
  // if the global store does not answer, the daemon uses the binding that it remembers, and marks the result
  // as unconfirmed.
  bool confirmed = false;
  // Keep the replica on the daemon's node until an operator unpins the replica.
  bool pin = false;
  // Write this version over a replica of an earlier version at `location` ("cpu" or "gpu:N"). Memory for one
  // image is then enough, and the earlier replica is gone. The daemon chooses the replica from which the
  // store's differences lead to this version. Without such differences, the daemon chooses the least recently
  // used idle replica at `location` that has the same tensors, under any key. FAILED_PRECONDITION, with the
  // reason, if the chosen replica is in use, pinned, a last copy, or in memory that cannot be written to.
  // If the chosen replica is in use, a get with wait_for_space waits until its readers end. If no replica at
  // `location` fits, the get is an ordinary get. Cannot be combined with `tensors`, `lane` or "disk".
  bool advance = false;
  std::function<void(const TransferProgress&)> on_progress;
};

// A tensor to put, borrowed for the call.
struct PutTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;       // empty: a scalar
  std::span<const std::byte> bytes;  // in host memory
  // The packed tensor on a GPU of ClientOptions::devices, from any allocator; `bytes` is then empty. All
  // writes to the tensor must have ended before the put, because the put does not wait for streams.
  DevicePtr device = {};
};

struct PutOptions {
  std::optional<std::string> key;
  std::optional<uint64_t> expected_revision;  // compare-and-swap; 0: the key must not exist yet
  // The number of versions that the key keeps from now on, with the current version: 1 to 1000. Unset: the
  // number of an earlier put, else the number in the global store's configuration.
  std::optional<uint32_t> keep;
  bool durable = false;  // write the artifact to disk before Put returns
  // Also write the artifact to this archive, one of daemon.archives ("s3://bucket/prefix"), before Put
  // returns. The daemon uses its own credentials. If only this step fails, the artifact is
  // stored, and the error says so. Empty: no archive.
  std::string archive;
  bool manifest_beside = false;  // import only: write the manifest beside the model
  std::string location = "cpu";
  bool wait_for_space = false;  // as GetOptions::wait_for_space
  bool verify = false;          // import only: read the files twice; ABORTED if they changed meanwhile
  bool pin = false;             // as GetOptions::pin
  // Only for the import of a folder with a key: also bind the files beside the tensors (config.json,
  // tokenizer). False: put only the tensors; the key keeps its previous files if the tensors' names, dtypes
  // and shapes are unchanged.
  bool files = true;
  // Only for a put of tensors with a key: paths of files and folders on this host. After the put has bound
  // the tensors, a further revision of the key binds the tensors with these files. A file keeps its name. For
  // a folder, the key binds the files that an import of the folder would bind.
  std::vector<std::string> files_at;
  // Also publish the difference from an earlier version (the base). A node that holds the base then pulls few
  // bytes. "auto": the base is the artifact that the key names before the put. A key or an artifact id: the
  // base is this artifact. "none": no difference. Empty: daemon.difference_base decides. If the tensors have
  // the names, dtypes and shapes of the base's tensors, the put stores the tensors in the base's order.
  std::string base;
  bool require_difference = false;  // without a difference the put fails and publishes nothing
  std::function<void(const TransferProgress&)> on_progress;
};

// A difference: an artifact that makes the image of `target_id` from the image of `base_id`.
struct DifferenceInfo {
  std::string artifact_id;  // of the difference itself
  std::string base_id;
  std::string target_id;
  uint64_t image_bytes = 0;  // of the difference itself
};

struct PutResult {
  std::string artifact_id;
  std::string replica_id;
  bool existed = false;       // the same content was already stored
  uint64_t key_revision = 0;  // 0: the put named no key
  std::string files_id;       // the artifact of the files that the key binds with the tensors; empty: none
  std::optional<TransferReport> transfer;
  std::optional<DifferenceInfo> difference;  // published with the artifact
  std::string no_difference;                 // why a requested difference was not made (a text for people)
};

// The artifact that contains an imported file.
struct ImportedFile {
  std::string artifact_id;
  size_t files = 1;  // number of files of that import; above 1: the file is a shard
};

struct KeyInfo {
  std::string name;
  std::string artifact_id;
  uint64_t revision = 0;
  absl::Time updated;        // wall time
  bool deleted = false;      // only in watches: the key was deleted
  bool unconfirmed = false;  // as Replica::key_unconfirmed; only ResolveKey sets it
  std::string files_id;      // the artifact of the files that are bound with the tensors; empty: none
  uint32_t keep = 0;         // versions that the key keeps, with the current one; 0: unknown (in watches)
  struct Version {
    std::string artifact_id;
    uint64_t revision = 0;
    absl::Time bound;  // wall time
  };
  std::vector<Version> earlier = {};  // earlier versions that the key still keeps, the newest first
};

// A snapshot of the daemon.
struct NodeStatus {
  struct Pool {
    Location location;
    uint64_t capacity_bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t pinned_bytes = 0;  // in leased or pinned replicas, which are not evicted
  };
  std::string node_id;
  std::string name;
  bool draining = false;
  bool global_store_reachable = false;
  std::string global_store_error;  // why the global store cannot be reached or refuses this node
  std::vector<Pool> pools;
  uint32_t replicas = 0;
  uint32_t active_transfers = 0;
};

class Client {
 public:
  // Connects, and returns after the daemon has answered the handshake.
  // - UNAVAILABLE: no daemon listens at the address within wait_for_daemon.
  // - UNAVAILABLE: the daemon does not answer within connect_timeout.
  // - PERMISSION_DENIED: this user may not connect, or every user can read the private key.
  // - CANCELLED: options.cancellation was cancelled.
  // - INVALID_ARGUMENT: options.daemon is not an address, or the certificates do not fit together.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  ~Client();
  // The daemon's address: unix:/path or host:port.
  const std::string& daemon() const;

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Attaches to the replica of `artifact`, a key or an artifact id, at options.location. If there is no
  // replica yet, the daemon first makes one from the nearest source.
  absl::StatusOr<std::unique_ptr<Replica>> Get(const RequestContext& context, std::string_view artifact,
                                               const GetOptions& options = {});
  // Gets at several locations at once: returns a replica for each of `locations`, in their order. "gpu:all"
  // stands for every GPU of the daemon, by ordinal. The node receives missing chunks once. As chunks arrive
  // at the first location, the daemon copies them to the other locations. If a get fails, GetAt cancels the
  // other gets and returns the first error, which names its location. GetAt ignores `options.location`.
  // Several threads may call `on_progress` at the same time.
  absl::StatusOr<std::vector<std::unique_ptr<Replica>>> GetAt(const RequestContext& context,
                                                              std::string_view artifact,
                                                              std::span<const std::string> locations,
                                                              const GetOptions& options = {});
  // The files that the key binds with its tensors (config.json, tokenizer). In the returned replica each file
  // is a tensor of bytes, named by the file's path. NOT_FOUND if the key binds no files. For the files of an
  // earlier Get, pass Replica::files_id() to Get instead.
  absl::StatusOr<std::unique_ptr<Replica>> GetFiles(const RequestContext& context, std::string_view key,
                                                    const GetOptions& options = {});
  // Starts a get in the background and returns. The client may be destroyed before the get ends.
  std::unique_ptr<PendingGet> StartGet(const RequestContext& context, std::string_view artifact,
                                       const GetOptions& options = {});

  // Sends the tensors, from host or GPU memory, to the daemon through a small ring of shared memory. The
  // daemon copies a tensor directly if the tensor is in a memfd that is sealed WRITE | SHRINK | GROW, or in a
  // replica that this process holds. Tensors must not change until Put returns, because Put may read each
  // byte until then. INVALID_ARGUMENT, with the tensor's name, if a tensor's bytes do not fit its shape, if
  // its name repeats, if it sets both `bytes` and `device`, or if its address is not on the GPU of `device`.
  absl::StatusOr<PutResult> Put(const RequestContext& context, std::span<const PutTensor> tensors,
                                const std::map<std::string, std::string>& metadata = {},
                                const PutOptions& options = {});
  // Stores a .safetensors file, or a folder of shards with their index.
  // - Over a unix socket, this process opens the files with its own permissions and passes them on.
  // - A daemon at host:port opens the path itself, on its own host and below its daemon.import_roots.
  // - `path` may be a URI ("s3://bucket/prefix"). The daemon reads a URI below its daemon.origins with its
  //   own credentials. The daemon reads any other URI only for a client on its host, with the credentials of
  //   the client's process (AWS_*, profiles, HF_TOKEN; see objects/client_credentials.h), for this import
  //   only.
  // NOT_FOUND or PERMISSION_DENIED if the files cannot be opened. INVALID_ARGUMENT if the files are not a
  // model or not regular files, or if `path` holds a secret.
  absl::StatusOr<PutResult> Import(const RequestContext& context, const std::string& path,
                                   const PutOptions& options = {});
  // The latest artifact that this daemon's node imported from the file. NOT_FOUND if the node did not import
  // the file, if the file's size or mtime has changed since, or if the file lies outside daemon.import_roots.
  absl::StatusOr<ImportedFile> FindImported(const RequestContext& context, const std::string& path);

  // Binds the key to `artifact`, an artifact id or another key, under the next revision. For another key,
  // binds the artifact and the files that the other key names now. FAILED_PRECONDITION if the key has another
  // revision than `expected_revision`. If `expected_revision` is 0, the key must not exist yet.
  absl::StatusOr<KeyInfo> BindKey(const RequestContext& context, std::string_view key,
                                  std::string_view artifact,
                                  std::optional<uint64_t> expected_revision = std::nullopt,
                                  std::optional<uint32_t> keep = std::nullopt);  // as PutOptions::keep
  // For `confirmed`, see GetOptions.
  absl::StatusOr<KeyInfo> ResolveKey(const RequestContext& context, std::string_view key,
                                     bool confirmed = false);
  // Deletes the key; the artifact stays. NOT_FOUND if the key does not exist. FAILED_PRECONDITION if the key
  // has another revision than `expected_revision`.
  absl::Status DeleteKey(const RequestContext& context, std::string_view key,
                         std::optional<uint64_t> expected_revision = std::nullopt);
  // The keys that begin with `prefix`, sorted by name.
  absl::StatusOr<std::vector<KeyInfo>> ListKeys(const RequestContext& context, std::string_view prefix);
  // Calls `on_key`, on this thread, for each existing key that begins with `prefix`, then for each change.
  // Returns OK when `on_key` returns false, and the context's error when the context ends. Reconnects
  // automatically. After a reconnect, reports only the keys that changed since `on_key` last got them. If a
  // key changes several times quickly, a slow `on_key` may get only the last change.
  absl::Status WatchKeys(const RequestContext& context, std::string_view prefix,
                         const std::function<bool(const KeyInfo&)>& on_key);

  // Pins or unpins replicas of this node. A pinned replica is not evicted. `replica` is a replica id, a key
  // or an artifact id; the last two stand for all replicas of the artifact on this node. NOT_FOUND if the
  // node has no such replica. Needs the operator role; a client uses GetOptions::pin or PutOptions::pin.
  absl::Status SetPinned(const RequestContext& context, std::string_view replica, bool pinned);

  absl::StatusOr<NodeStatus> GetStatus(const RequestContext& context);

 private:
  friend class Changes;
  explicit Client(std::shared_ptr<Session> session);
  // Like Get. Errors name `what` as the operation and the subject.
  absl::StatusOr<std::unique_ptr<Replica>> GetNamed(const RequestContext& context, std::string_view artifact,
                                                    const GetOptions& options, std::string_view what);
  // One attempt of Get.
  absl::StatusOr<std::unique_ptr<Replica>> GetOnce(const RequestContext& context, std::string_view artifact,
                                                   const GetOptions& options);

  const std::shared_ptr<Session> session_;
};

}  // namespace tensorcast::client
