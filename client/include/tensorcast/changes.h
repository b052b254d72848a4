// Finds the elements that differ between two versions of a model, and writes only those into memory that a
// program owns. For an engine with weights that must stay at their addresses, a module that goes on training,
// or an export for another system.
//
//   auto target = client->Get(context, "policy");                       // version N+1, whole, in host memory
//   auto changes = Changes::Find(*client, context, version_n, **target);
//   if (!changes.ok()) return changes.status();
//   // `my_tensors` hold version N, or version N and parts of version N+1.
//   auto written = (*changes)->WriteTo(context, my_tensors);
//
// The differences that the store has (PutOptions::base) tell which elements changed. If the store has none,
// both images are compared. The values always come from the target: the daemon has compared its bytes with
// their digests. A write may therefore be repeated, also after one that ended early: the memory then holds
// the target's elements.
//
// Ownership: the target is borrowed and must outlive this object. Thread-safe.
//
// Errors: those of the Client calls that this class makes. A difference that the store cannot deliver, or
// that cannot be decoded, is not an error: the images are compared, or its elements are written whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/request_context.h"
#include "tensorcast/client.h"
#include "tensorcast/replica.h"

namespace tensorcast::client {

// What told which elements changed.
enum class ChangesSource : uint8_t {
  kSame,         // base and target are one artifact: nothing changed
  kDifferences,  // differences that the store has
  kComparison,   // a comparison of both images on this host
  kWhole,        // unknown: every element counts as changed
};
std::string_view ChangesSourceName(ChangesSource source);  // "same", "differences", "comparison", "whole"

// The changes of one tensor.
struct TensorChanges {
  // True: the caller should take the whole tensor, and both lists are empty. The reason is that more than a
  // quarter of its elements changed, that some changed and are smaller than a byte (F4, F6), or that the
  // changed elements are not known.
  bool whole = false;
  std::vector<int64_t> indices = {};   // row-major indices of the changed elements, ascending
  std::vector<std::byte> values = {};  // the target's values of those elements, packed
};

struct WrittenChanges {
  uint64_t elements = 0;     // elements that were written one by one
  uint64_t whole_bytes = 0;  // bytes that were copied in larger pieces
};

struct ChangesOptions {
  // If no differences lead from the base to the target, get the base and compare both images. If false,
  // every element counts as changed (kWhole), which costs a write no more than a comparison.
  bool compare = true;
};

class Changes {
 public:
  // `base` is a key or an artifact id; empty: unknown (kWhole). `target` must be attached in host memory,
  // whole or in part (GetOptions::tensors). Gets the differences at "cpu", or the base to compare with.
  // FAILED_PRECONDITION if `target` is not in host memory. NOT_FOUND if the key does not exist, or if the
  // store has neither differences nor the base.
  static absl::StatusOr<std::unique_ptr<Changes>> Find(Client& client, const RequestContext& context,
                                                       std::string_view base, const Replica& target,
                                                       const ChangesOptions& options = {});
  ~Changes();
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  ChangesSource source() const;
  const std::string& base_id() const;  // empty where no base was named
  size_t differences() const;          // number of differences that are read (kDifferences)

  // The changes of target.tensors()[tensor]. REQUIRES: tensor < target.tensors().size(). Calls are cheapest
  // in ascending order of tensors, because a chunk that two tensors share is then decoded once.
  TensorChanges Of(size_t tensor) const;

  // Writes the changed elements into `tensors`, which has the caller's memory for each of target.tensors(),
  // in their order: either as many bytes as the packed tensor, or none, which leaves the tensor out. Uses up
  // to eight threads. After an error (CANCELLED, DEADLINE_EXCEEDED) only some elements are written, all with
  // the target's values. INVALID_ARGUMENT for memory of another size.
  absl::StatusOr<WrittenChanges> WriteTo(const RequestContext& context,
                                         std::span<const std::span<std::byte>> tensors) const;

  // Compares memory, given as for WriteTo, with the digests of the target's manifest. Returns the indices of
  // the tensors that differ. DATA_LOSS if the target's own memory does not match the digests.
  static absl::StatusOr<std::vector<size_t>> Differing(const RequestContext& context, const Replica& target,
                                                       std::span<const std::span<std::byte>> tensors);

 private:
  class Finder;
  struct State;
  struct Target;
  explicit Changes(std::unique_ptr<State> state);
  static absl::StatusOr<Target> TargetOf(const Replica& replica);

  const std::unique_ptr<State> state_;
};

}  // namespace tensorcast::client
