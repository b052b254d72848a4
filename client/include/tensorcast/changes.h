// What differs between two versions of a model, and how memory that a program owns is brought from one to the
// other without touching what is equal: an engine with weights that must stay at their addresses, a module
// that trains on, an export for another system.
//
//   auto target = client->Get(context, "policy");                       // version N+1, whole, in host memory
//   auto changes = Changes::Find(*client, context, version_n, **target);
//   if (!changes.ok()) return changes.status();
//   auto written = (*changes)->WriteTo(context, my_tensors);            // that hold version N, or a part of
//   N+1
//
// The elements that changed come from the differences that the store has (PutOptions::base). Where there are
// none both images are compared. Either tells *which* elements; their values are always those of the target.
// The daemon compared its bytes with their digests. So writing twice, or once more after a write that broke
// off anywhere, is harmless and ends with the target.
//
// Ownership: the target is borrowed and must outlive this object. Thread-safe.
//
// Errors: as the calls of Client that it makes. A difference that cannot be had or decoded is not an error:
// its elements are compared, or written whole.
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

// Where the changed elements are known from.
enum class ChangesSource : uint8_t {
  kSame,         // base and target are one artifact
  kDifferences,  // of the store
  kComparison,   // of both images, on this host
  kWhole,        // nothing tells: every element counts as changed
};
std::string_view ChangesSourceName(ChangesSource source);  // "same", "differences", "comparison", "whole"

// Of one tensor.
struct TensorChanges {
  // So many of its elements changed, or may have, that the tensor is better taken whole: more than a quarter,
  // any of less than a byte (F4, F6), or one that a difference does not describe. The lists are then empty.
  bool whole = false;
  std::vector<int64_t> indices = {};   // of the changed elements, in row-major order, ascending
  std::vector<std::byte> values = {};  // of those elements in the target, one after another
};

struct WrittenChanges {
  uint64_t elements = 0;     // that were written one by one
  uint64_t whole_bytes = 0;  // that were copied in rows
};

struct ChangesOptions {
  // Where no differences lead from the base to the target: get the base, if it is not here, and compare both.
  // False: everything counts as changed (kWhole), which costs a write no more than a comparison.
  bool compare = true;
};

class Changes {
 public:
  // `base` is a key or an artifact id; empty: unknown (kWhole). `target` is attached in host memory, whole
  // or in part (GetOptions::tensors). Gets the differences at "cpu", or the base to compare with.
  // FAILED_PRECONDITION for a target elsewhere, NOT_FOUND for a key that does not exist, and where neither
  // differences nor the base to compare with can be had.
  static absl::StatusOr<std::unique_ptr<Changes>> Find(Client& client, const RequestContext& context,
                                                       std::string_view base, const Replica& target,
                                                       const ChangesOptions& options = {});
  ~Changes();
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  ChangesSource source() const;
  const std::string& base_id() const;  // empty where no base was named
  size_t differences() const;          // that are read, for kDifferences

  // The changes of target.tensors()[tensor], which it must have. Cheapest in ascending order: tensors that
  // share a chunk are decoded once.
  TensorChanges Of(size_t tensor) const;

  // Writes the target's elements where they changed into `tensors`, which has memory of the caller for each
  // of target.tensors(), in their order: as many bytes as the tensor, packed, or none for one to leave out.
  // Uses up to four threads. What is written is the target's, wherever an error (CANCELLED,
  // DEADLINE_EXCEEDED) ends it. INVALID_ARGUMENT for memory of another size.
  absl::StatusOr<WrittenChanges> WriteTo(const RequestContext& context,
                                         std::span<const std::span<std::byte>> tensors) const;

  // Compares memory, given as for WriteTo, with the digests of the target's manifest. The tensors that
  // differ. DATA_LOSS where the memory of the target itself does not match them.
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
