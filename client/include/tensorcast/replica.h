// A Replica is the result of a get: it attaches this process to a replica of an artifact. A Replica gives the
// tensors in place, without a copy.
//
//   for (const TensorView& tensor : replica->tensors()) Use(tensor.name, tensor.shape, tensor.host);
//   const absl::StatusOr<TensorView> embedding = replica->Find("model.embed_tokens.weight");
//
// Ownership: a Replica is a lease. While a Replica lives, the daemon neither evicts nor rewrites the
// replica's bytes. The destructor unmaps the memory and ends the lease. Views and spans of a Replica are
// valid while the Replica lives. A Replica may outlive its Client, but not the DeviceRuntime that opened its
// memory.
//
// Thread-safe: only the results of lost() and Check() change.
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

// One tensor of a replica. Borrowed: valid while its Replica lives.
struct TensorView {
  std::string_view name;
  DType dtype = DType::kU8;
  std::span<const uint64_t> shape;  // empty: a scalar
  uint64_t nbytes = 0;
  std::span<const std::byte> host;  // the bytes if the replica is in host memory; else empty
  DevicePtr device;                 // the address in this process if the replica is on a GPU; else null
};

// The fields of a DLTensor of DLPack 1.1 and later (https://github.com/dmlc/dlpack). `data` is valid while
// the Replica lives; the DlpackView owns `shape` and `strides`. The tensor is read-only: a consumer must set
// DLPACK_FLAG_BITMASK_READ_ONLY in its DLManagedTensorVersioned. `byte_offset` is 0. The strides count
// elements of a packed row-major tensor; elements smaller than a byte are packed too.
struct DlpackView {
  void* data = nullptr;     // an address on the device
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

  // The requested tensors (GetOptions::tensors), in the image's order. If the replica is not attached
  // (GetOptions::attach), `host` and `device` of each tensor are empty.
  const std::vector<TensorView>& tensors() const;
  // NOT_FOUND if the artifact has no tensor of that name. FAILED_PRECONDITION if the get did not request that
  // tensor.
  absl::StatusOr<TensorView> Find(std::string_view name) const;
  // FAILED_PRECONDITION if the replica is not attached, or if it is on a fake GPU. OUT_OF_RANGE if a
  // dimension or stride is above the maximum of int64_t. REQUIRES: `tensor` belongs to this replica.
  absl::StatusOr<DlpackView> Dlpack(const TensorView& tensor) const;
  // The whole image: all tensors, each at a multiple of 256 bytes, with zeros between them. Empty unless the
  // replica is attached in host memory and all tensors were requested.
  std::span<const std::byte> image() const;
  // Whether this process may write to the tensors in host memory: see GetOptions::copy_on_write.
  bool writable() const;
  // image_bytes and tensor_count describe the whole artifact, even if the get requested only some tensors.
  uint64_t image_bytes() const;
  size_t tensor_count() const;
  // The metadata of the put or of the imported files, such as "format".
  const std::map<std::string, std::string>& metadata() const;

  // The artifact id of the files (config.json, tokenizer) that the key bound with these tensors. Pass this id
  // to Client::Get. Empty if the key binds no files, or if the get named an artifact id.
  const std::string& files_id() const;
  // The revision of the key that the get named; 0 if the get named an artifact id.
  uint64_t key_revision() const;
  // True if the global store did not answer the get, and the daemon used the binding that it remembers. The
  // key may name another artifact by now.
  bool key_unconfirmed() const;
  // How the bytes came to this node; nullopt when the replica already existed.
  const std::optional<TransferReport>& transfer() const;
  // True after the connection to the daemon ended. The bytes stay readable, but the lease is over: call Get
  // for a new lease. If a restarted daemon still has this memory (daemon.keep_pool), a living Client takes
  // the lease again automatically, and lost() becomes false.
  bool lost() const;
  // Returns what the daemon last reported, without a call:
  // - OK: no damage is known, or the replica is not attached.
  // - UNAVAILABLE: the replica is lost(), and no damage is known.
  // - DATA_LOSS, with the chunk: the daemon found bytes that no longer match their digests (bad memory).
  //   Bytes that were read recently may be wrong. The memory stays mapped while this object lives, but no
  //   other client gets this replica. Call Get again: the daemon fills another replica from a good source.
  absl::Status Check() const;
  // Compares every chunk that holds a requested tensor with the manifest's digests, at the speed of memory.
  // DATA_LOSS, with the chunk, if a chunk differs. FAILED_PRECONDITION if the replica is not attached in host
  // memory.
  absl::Status Verify() const;

 private:
  friend class AdminClient;
  friend class Changes;
  friend class Client;
  friend class LiveClient;
  struct State;
  explicit Replica(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

// A get that runs in the background (Client::StartGet). The destructor cancels the get and waits until the
// get has ended. Thread-safe.
class PendingGet {
 public:
  ~PendingGet();
  PendingGet(const PendingGet&) = delete;
  PendingGet& operator=(const PendingGet&) = delete;

  // Blocks until the get ends. At the deadline returns DEADLINE_EXCEEDED; the get continues, and Wait may be
  // called again. Returns the result once; later calls return FAILED_PRECONDITION.
  absl::StatusOr<std::unique_ptr<Replica>> Wait(SteadyTime deadline);
  void Cancel();

 private:
  friend class Client;
  struct State;
  explicit PendingGet(std::unique_ptr<State> state);

  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::client
