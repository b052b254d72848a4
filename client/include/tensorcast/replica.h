// What a get gives: a replica of an artifact, attached to this process, and its tensors where they lie.
//
//   for (const TensorView& tensor : replica->tensors()) Use(tensor.name, tensor.shape, tensor.host);
//   const absl::StatusOr<TensorView> embedding = replica->Find("model.embed_tokens.weight");
//
// Ownership: a Replica is the lease. While it lives the store daemon neither evicts nor rewrites what it
// shows; destroying it unmaps the memory (for a GPU: closes the handle, then tells the daemon) and ends the
// lease. Whatever was borrowed from it, its views above all, ends with it. A Replica may outlive the Client
// that made it, but not the DeviceRuntime that opened it.
//
// Thread-safe: nothing in it changes but lost() and Check().
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/steady_time.h"
#include "core/device/device_runtime.h"
#include "core/replica/replica.h"
#include "core/replica/transfer_report.h"
#include "core/tensor/tensor.h"

namespace tensorcast::client {

// One tensor of a replica, without a copy. Borrowed: valid while its Replica lives.
struct TensorView {
  std::string_view name;
  DType dtype = DType::kU8;
  std::span<const uint64_t> shape;  // empty: a scalar
  uint64_t nbytes = 0;
  std::span<const std::byte> host;  // the bytes, of a replica in host memory; else empty
  DevicePtr device;                 // the address in this process, of a replica on a GPU; else null
};

// A tensor as DLPack has it (https://github.com/dmlc/dlpack, DLTensor of version 1.1 and later): fill in a
// DLTensor from it, field by field. Borrowed like the view; `shape` and `strides` are its own. `byte_offset`
// is 0, the strides are those of a packed row-major tensor, in elements (packed too where they have less than
// a byte). Read-only, which DLPack can say since version 1.0.
struct DlpackView {
  void* data = nullptr;     // an address of the device
  int32_t device_type = 0;  // kDLCPU 1, kDLCUDA 2
  int32_t device_id = 0;    // CUDA's ordinal in this process
  uint8_t type_code = 0;    // DLDataTypeCode
  uint8_t type_bits = 0;
  uint16_t type_lanes = 1;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
};

class Replica {
 public:
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  const std::string& artifact_id() const;
  const std::string& replica_id() const;
  const Location& location() const;

  // The tensors that were asked for (GetOptions::tensors), in the image's order. Of a replica that is not
  // attached (GetOptions::attach), the descriptions alone.
  const std::vector<TensorView>& tensors() const;
  // NOT_FOUND when the artifact has no tensor of that name, FAILED_PRECONDITION when it is not among those
  // that were asked for.
  absl::StatusOr<TensorView> Find(std::string_view name) const;
  // FAILED_PRECONDITION for a replica that is not attached, and on fake GPUs, with addresses that no other
  // library can use. REQUIRES: `tensor` is one of this replica.
  absl::StatusOr<DlpackView> Dlpack(const TensorView& tensor) const;
  // All tensors as they lie, each at a multiple of 256 bytes and zeros between them; empty but for an
  // attached replica in host memory of which all were asked for.
  std::span<const std::byte> image() const;
  // Whether this process may write to the tensors in host memory: see GetOptions::copy_on_write.
  bool writable() const;
  // Both are of the whole artifact, whatever tensors were asked for.
  uint64_t image_bytes() const;
  size_t tensor_count() const;
  // What the artifact was put with, or its files carry: "format" for example.
  const std::map<std::string, std::string>& metadata() const;

  // The artifact of the files (config.json, tokenizer) that the key bound with these tensors; empty: none, or
  // it was asked for by id. Client::Get gets it like any other.
  const std::string& files_id() const;
  // The revision of the key that it was asked for by; 0 when it was asked for by id.
  uint64_t key_revision() const;
  // True when the global store did not answer: the key is as the daemon last knew it, and may mean another
  // artifact by now.
  bool key_unconfirmed() const;
  // How it came to this node; nullopt when it was already there.
  const std::optional<TransferReport>& transfer() const;
  // True once the daemon went away. The bytes stay readable, but the lease is over: for a new one, Get again.
  // False again when the daemon came back with this memory (daemon.keep_pool): then the client took the lease
  // again by itself, for as long as it lives.
  bool lost() const;
  // OK: attached, and no damage is known (also of a replica that is not attached). UNAVAILABLE: it is
  // lost(). DATA_LOSS: the daemon found that the bytes no longer match their digests (bad memory),
  // and says where. The daemon gives that replica to no client any more; what was read of it lately may be
  // wrong. Its memory stays mapped and leased for as long as this object lives. Get again gives another
  // replica, which the daemon takes from a good source by itself. Looks at what the daemon reported; makes no
  // call.
  absl::Status Check() const;
  // Digests what is attached in host memory and compares it with the artifact's digests: DATA_LOSS, with the
  // chunk. Of every chunk that the tensors asked for lie in; at the speed of memory. FAILED_PRECONDITION for
  // other places.
  absl::Status Verify() const;

 private:
  friend class AdminClient;
  friend class Changes;
  friend class Client;
  struct State;
  explicit Replica(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

// A get that runs in the background (Client::StartGet). Destroying it cancels the get and waits for its end.
// Thread-safe.
class PendingGet {
 public:
  ~PendingGet();
  PendingGet(const PendingGet&) = delete;
  PendingGet& operator=(const PendingGet&) = delete;

  // Blocks until the get ends, at most to the deadline: then DEADLINE_EXCEEDED, while the get goes on and can
  // be waited for again. The result is handed out once; after that FAILED_PRECONDITION.
  absl::StatusOr<std::unique_ptr<Replica>> Wait(SteadyTime deadline);
  void Cancel();

 private:
  friend class Client;
  struct State;
  explicit PendingGet(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::client
