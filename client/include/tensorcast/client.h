// The client library of TensorCast: what a serving engine or a trainer links to store models and to attach to
// them. It talks to the store daemon of its own host; weights are never copied into the client. Programs
// include only this header: it includes the others that they need.
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
// Ownership: a Replica is a lease, and may outlive the Client that made it. What is passed to a call is
// borrowed until the call returns.
//
// Threading: Client is thread-safe. All calls block, except StartGet. Callbacks run on the thread that does
// the work: the caller's, or that of the background get; no lock is held meanwhile.
//
// Time: every deadline (RequestContext::deadline, PendingGet::Wait) is by the steady clock, SteadyNow() plus
// a duration, so that setting the machine's clock changes nothing. KeyInfo::updated is wall time, for people.
//
// Errors: UNAVAILABLE when the daemon (or, for what it does not know itself, the global store behind it)
// cannot be reached; NOT_FOUND for unknown keys, artifacts and replicas; RESOURCE_EXHAUSTED when a pool is
// full; FAILED_PRECONDITION when the bytes cannot be reached from this process, since the daemon is another
// host's or no device runtime was given, or when a compare-and-swap finds another revision; DATA_LOSS when no
// source has intact bytes; DEADLINE_EXCEEDED and CANCELLED as the context asks. Only UNAVAILABLE is
// retried, within the deadline and for at most ten seconds, and not where the daemon says that the global
// store is away for longer than a restart takes.
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

// What one client's calls share; private to the library.
struct Session;

// PEM files that make connections to host:port mutual TLS; all empty: in clear. Read again when they change.
struct ClientCertificates {
  std::string ca;            // the authorities that are trusted
  std::string certificate;   // of this program: an operator's or a client's
  std::string key;           // of that certificate; not readable by every user
  std::string trust_domain;  // of the names that are accepted; empty: that of the certificate
};

struct ClientOptions {
  // unix:/path, /path or host:port. Empty: TENSORCAST_DAEMON, else the first daemon that listens in
  // $XDG_RUNTIME_DIR/tensorcast, in this user's state folder or in /run/tensorcast. There the daemon's own
  // user is given its operator's socket (daemon.sock), every other user its client's (client.sock).
  std::string daemon;
  ClientCertificates certificates = {};
  absl::Duration connect_timeout = absl::Seconds(5);  // for the answer of a daemon that is there
  // How long to wait for a daemon that is not there yet, for a program that is started beside it.
  absl::Duration wait_for_daemon = absl::ZeroDuration();
  Cancellation cancellation;         // of Connect only; each call has a context of its own
  DeviceRuntime* devices = nullptr;  // opens GPU replicas; may be null; must outlive the client's replicas
  // What StartTelemetry (tensorcast/telemetry.h) returned; the client and its background calls keep it alive.
  // Null: telemetry is off, or the program exports it by itself.
  std::shared_ptr<void> telemetry = nullptr;
};

struct GetOptions {
  std::string location = "cpu";  // "cpu", "gpu:N", "disk" (made, but not attached)
  std::string lane;              // force "local", "ucx", "ucx-rma", "tcp" or "disk"; empty: the fastest
  bool wait_for_space = false;   // until the deadline, when the pool is full of replicas in use
  bool attach = true;            // false: make the replica on the daemon's node, and only describe it
  // Only these tensors; empty: all. Each is a name, or a pattern of names: `*` any text, `?` any character,
  // `[a-z]` one of those, `[!a-z]` one of the others. Brings only the missing chunks that these tensors lie
  // in. Works only for "cpu", since only host memory can hold a part of an image. INVALID_ARGUMENT for a name
  // or pattern that matches no tensor.
  std::vector<std::string> tensors = {};
  // Host memory is mapped so that this process may write to it, for libraries with tensors that cannot be
  // read-only: written pages are private copies, and no other process sees them. If the pool has reserved
  // huge pages, as many more must be free; otherwise the mapping is read-only (Replica::writable).
  bool copy_on_write = false;
  // The global store must resolve the key now: UNAVAILABLE when it does not answer. If false, the daemon may
  // then answer from its memory, and marks that answer as unconfirmed.
  bool confirmed = false;
  // The replica stays on the daemon's node, leased or not, until an operator unpins it.
  bool pin = false;
  // Write the version over a replica of an earlier one in the daemon's host memory, which is gone then, so
  // that one image is held instead of two. FAILED_PRECONDITION with the reason where that replica is in use,
  // is a last copy, or lies in memory that cannot be written to; with wait_for_space its readers are waited
  // for. Where there is no earlier version the get is an ordinary one. Not with `tensors`, `lane` or another
  // location than "cpu".
  bool advance = false;
  std::function<void(const TransferProgress&)> on_progress;
};

// A tensor to be put, borrowed for the call.
struct PutTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<uint64_t> shape;       // empty: a scalar
  std::span<const std::byte> bytes;  // in host memory
  // Else: on a GPU of ClientOptions::devices, packed, from any allocator. Writes to it must have ended: no
  // stream is waited for.
  DevicePtr device = {};
};

struct PutOptions {
  std::optional<std::string> key;
  std::optional<uint64_t> expected_revision;  // compare-and-swap; 0: the key must not exist yet
  // How many versions the key keeps from now on, the current one among them: 1 to 1000. Unset: what an
  // earlier put gave, else what the global store's configuration says.
  std::optional<uint32_t> keep;
  bool durable = false;  // packed to disk before Put returns
  // One of the daemon's daemon.archives ("s3://bucket/prefix"): Put returns after the artifact was packed
  // there too, with the daemon's credentials. If only that fails, the artifact is stored, and the error says
  // so. Empty: no archive.
  std::string archive;
  bool manifest_beside = false;  // of an import: write the manifest beside the model
  std::string location = "cpu";
  bool wait_for_space = false;
  bool verify = false;  // of an import: read the files twice; ABORTED when something wrote them meanwhile
  bool pin = false;     // as GetOptions::pin
  // For an import of a folder with a key: binds the files beside the tensors (config.json, tokenizer) too. If
  // false, only the tensors are put, and the key keeps its files if names, dtypes and shapes of the tensors
  // are the same.
  bool files = true;
  // For a put of tensors with a key: paths of files and folders on this host. Their files are bound with the
  // tensors, as one more revision. A file has its name; a folder gives the files that an import would take.
  std::vector<std::string> files_at;
  // Publish also the difference from an earlier version, so that a node that holds that version pulls little.
  // "auto": the artifact that the key names before the put; a key, or an artifact id; "none": no difference.
  // Empty: what daemon.difference_base says. Tensors that differ from those of the base in nothing but bytes
  // and order are put in the base's order.
  std::string base;
  bool require_difference = false;  // without a difference the put fails and publishes nothing
  std::function<void(const TransferProgress&)> on_progress;
};

// An artifact that makes the image of `target_id` from that of `base_id`.
struct DifferenceInfo {
  std::string artifact_id;  // its own
  std::string base_id;
  std::string target_id;
  uint64_t image_bytes = 0;  // its own
};

struct PutResult {
  std::string artifact_id;
  std::string replica_id;
  bool existed = false;  // the same content was already stored
  uint64_t key_revision = 0;
  std::string files_id;  // the artifact of the files that the key binds with the tensors; empty: none
  std::optional<TransferReport> transfer;
  std::optional<DifferenceInfo> difference;  // published with the artifact
  std::string no_difference;                 // why none was made where one was asked for, for people
};

// What a file of this host was imported as.
struct ImportedFile {
  std::string artifact_id;
  size_t files = 1;  // of that import; more than one: the file is a shard, and the artifact has more than it
};

struct KeyInfo {
  std::string name;
  std::string artifact_id;
  uint64_t revision = 0;
  absl::Time updated;        // wall time
  bool deleted = false;      // in watches
  bool unconfirmed = false;  // when resolved: as Replica::key_unconfirmed
  std::string files_id;      // the artifact of the files that are bound with the tensors; empty: none
  uint32_t keep = 0;         // versions that it keeps, with the current one; 0: unknown (in watches)
  struct Version {
    std::string artifact_id;
    uint64_t revision = 0;
    absl::Time bound;  // wall time
  };
  std::vector<Version> earlier = {};  // that it was bound to before and still keeps, the newest first
};

// A snapshot of the daemon, for programs that use it.
struct NodeStatus {
  struct Pool {
    Location location;
    uint64_t capacity_bytes = 0;
    uint64_t used_bytes = 0;
    uint64_t pinned_bytes = 0;  // of leased and pinned replicas, which eviction cannot take
  };
  std::string node_id;
  std::string name;
  bool draining = false;
  bool global_store_reachable = false;
  std::string global_store_error;  // why it is not reachable, or does not take this node
  std::vector<Pool> pools;
  uint32_t replicas = 0;
  uint32_t active_transfers = 0;
};

class Client {
 public:
  // Connects, and waits for the daemon's side of the handshake. UNAVAILABLE when no daemon listens there (at
  // once, or after wait_for_daemon), or when it does not answer within connect_timeout; PERMISSION_DENIED
  // when this user may not connect; CANCELLED when the cancellation comes first; INVALID_ARGUMENT for
  // certificates that do not fit together.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(const ClientOptions& options);
  ~Client();
  // The address of the daemon that this client is connected to: unix:/path or host:port.
  const std::string& daemon() const;

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // `artifact` is a key or an artifact id. Makes a replica at options.location where there is none yet, from
  // whichever source is nearest, and attaches to it.
  absl::StatusOr<std::unique_ptr<Replica>> Get(const RequestContext& context, std::string_view artifact,
                                               const GetOptions& options = {});
  // Gets at several locations at once: returns a replica for each of `locations`, in their order. "gpu:all"
  // stands for every GPU of the daemon, by ordinal. Missing chunks come to the node once, and the other
  // locations are filled from the first while they arrive. All or none: the first error, which names its
  // location, cancels the rest. `options.location` is ignored; several threads call `on_progress`.
  absl::StatusOr<std::vector<std::unique_ptr<Replica>>> GetAt(const RequestContext& context,
                                                              std::string_view artifact,
                                                              std::span<const std::string> locations,
                                                              const GetOptions& options = {});
  // The files that the key binds with its tensors (config.json, tokenizer), as a replica in which each file
  // is a tensor of bytes, named by its path. NOT_FOUND where the key binds none. For the files of the same
  // revision as a Replica of tensors, get its Replica::files_id instead.
  absl::StatusOr<std::unique_ptr<Replica>> GetFiles(const RequestContext& context, std::string_view key,
                                                    const GetOptions& options = {});
  // A get in the background. The client may be destroyed before it ends.
  std::unique_ptr<PendingGet> StartGet(const RequestContext& context, std::string_view artifact,
                                       const GetOptions& options = {});

  // Streams the tensors, from host or GPU memory, to the daemon through a small ring of shared memory, so
  // that no second image is needed. Tensors in a memfd that is sealed WRITE | SHRINK | GROW, and tensors of a
  // replica that this process holds, are handed over instead, and the daemon copies them from there.
  // Tensors must not change until Put returns: the daemon stores each byte as it was when it was read.
  // INVALID_ARGUMENT, with the tensor's name, if its bytes do not fit its shape, its name repeats, or its
  // address is not on that GPU.
  absl::StatusOr<PutResult> Put(const RequestContext& context, std::span<const PutTensor> tensors,
                                const std::map<std::string, std::string>& metadata = {},
                                const PutOptions& options = {});
  // Stores a .safetensors file, or a folder of shards with their index. This process opens the files, so that
  // its own permissions apply, and hands them to the daemon of its host, which reads them. A daemon at
  // host:port opens the path itself, on its own host and below its daemon.import_roots. The daemon also reads
  // a URI ("s3://bucket/prefix"): below its daemon.origins with its own credentials. A daemon of this host
  // reads any other URI with the credentials of this process (AWS_*, profiles, HF_TOKEN; see
  // objects/client_credentials.h), for this import only.
  // NOT_FOUND or PERMISSION_DENIED if the files cannot be opened, INVALID_ARGUMENT if they are not a model or
  // not regular files.
  absl::StatusOr<PutResult> Import(const RequestContext& context, const std::string& path,
                                   const PutOptions& options = {});
  // The latest artifact that this daemon's node imported from the file. NOT_FOUND if it did not import it, if
  // the file's size or mtime has changed since, or if it lies outside the daemon's import_roots: the daemon
  // keeps no origin that it cannot read again.
  absl::StatusOr<ImportedFile> FindImported(const RequestContext& context, const std::string& path);

  // Binds the key to `artifact`, under the next revision. `artifact` is an id, or a key that names the
  // artifact now, and then the files of that key are bound too. FAILED_PRECONDITION if the key has another
  // revision than `expected_revision` (0: if it exists).
  absl::StatusOr<KeyInfo> BindKey(const RequestContext& context, std::string_view key,
                                  std::string_view artifact,
                                  std::optional<uint64_t> expected_revision = std::nullopt,
                                  std::optional<uint32_t> keep = std::nullopt);  // as PutOptions::keep
  // `confirmed` as in GetOptions.
  absl::StatusOr<KeyInfo> ResolveKey(const RequestContext& context, std::string_view key,
                                     bool confirmed = false);
  absl::Status DeleteKey(const RequestContext& context, std::string_view key,
                         std::optional<uint64_t> expected_revision = std::nullopt);
  absl::StatusOr<std::vector<KeyInfo>> ListKeys(const RequestContext& context, std::string_view prefix);
  // Calls `on_key`, on this thread, for each key, then for each change, until the context ends (returns its
  // error) or `on_key` returns false (returns OK). Reconnects by itself.
  absl::Status WatchKeys(const RequestContext& context, std::string_view prefix,
                         const std::function<bool(const KeyInfo&)>& on_key);

  // A pinned replica of this node is not evicted until it is unpinned, leased or not. `replica` is its id; a
  // key or an artifact id stands for all replicas that this node has of the artifact. NOT_FOUND where it has
  // none. For operators: a client pins what its own get or put makes, by their option `pin`.
  absl::Status SetPinned(const RequestContext& context, std::string_view replica, bool pinned);

  absl::StatusOr<NodeStatus> GetStatus(const RequestContext& context);

 private:
  friend class Changes;
  explicit Client(std::shared_ptr<Session> session);
  // One attempt of Get.
  absl::StatusOr<std::unique_ptr<Replica>> GetOnce(const RequestContext& context, std::string_view artifact,
                                                   const GetOptions& options);

  const std::shared_ptr<Session> session_;
};

}  // namespace tensorcast::client
