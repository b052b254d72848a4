// Finds the elements that differ between two versions of a model, and writes only these elements into the
// caller's memory.
//
//   auto target = client->Get(context, "policy");                       // version N+1, whole, in host memory
//   auto changes = Changes::Find(*client, context, version_n, **target);
//   if (!changes.ok()) return changes.status();
//   // `my_tensors` hold version N, or version N and parts of version N+1.
//   auto written = (*changes)->WriteTo(context, my_tensors);
//
// The store's differences (PutOptions::base) show which elements changed. Without differences, Changes
// compares both images. The values always come from the target's image, which the daemon has verified. A
// write may be repeated, also after an error. After a successful write the memory holds the target's
// elements.
//
// Ownership: the target is borrowed and must outlive this object. Thread-safe.
//
// Errors: this class returns the errors of the Client calls that it makes. If the store cannot deliver a
// difference, Find compares the images. If a difference cannot be decoded, the chunks that it describes are
// written whole.
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

// How the changed elements were found.
enum class ChangesSource : uint8_t {
  kSame,         // base and target are one artifact, so nothing changed
  kDifferences,  // differences that the store has
  kComparison,   // a comparison of both images on this host
  kWhole,        // the changed elements are unknown: every element counts as changed
};
std::string_view ChangesSourceName(ChangesSource source);  // "same", "differences", "comparison", "whole"

// The changes of one tensor.
struct TensorChanges {
  // True: take the whole tensor; both lists are empty. This happens if more than a quarter of the elements
  // changed, if elements smaller than a byte changed (F4, F6), or if the changed elements are unknown.
  bool whole = false;
  std::vector<int64_t> indices = {};   // flat row-major indices of the changed elements, ascending
  std::vector<std::byte> values = {};  // the target's values of those elements, packed
};

struct WrittenChanges {
  uint64_t elements = 0;     // elements that were written one by one
  uint64_t whole_bytes = 0;  // bytes that were copied in larger pieces
};

struct ChangesOptions {
  // Matters only if no differences connect the base and the target. True: Find gets the base and compares
  // both images. False: every element counts as changed (kWhole).
  bool compare = true;
};

class Changes {
 public:
  // `base` is a key or an artifact id; if it is empty, every element counts as changed (kWhole). `target`
  // must be attached in host memory, whole or in part (GetOptions::tensors). Gets the differences or the base
  // at "cpu". FAILED_PRECONDITION if `target` is not in host memory. NOT_FOUND if the key does not exist, or
  // if the store has neither the differences nor the base.
  static absl::StatusOr<std::unique_ptr<Changes>> Find(Client& client, const RequestContext& context,
                                                       std::string_view base, const Replica& target,
                                                       const ChangesOptions& options = {});
  ~Changes();
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  ChangesSource source() const;
  const std::string& base_id() const;  // empty if Find was called with an empty `base`
  size_t differences() const;          // number of differences in use; 0 if source() is not kDifferences

  // The changes of target.tensors()[tensor]. REQUIRES: tensor < target.tensors().size(). Calls in ascending
  // order of tensors are fastest: consecutive tensors may share a chunk, which is then decoded only once.
  TensorChanges Of(size_t tensor) const;

  // Writes the changed elements into `tensors`: the caller's memory for each of target.tensors(), in the same
  // order. Each span has as many bytes as the packed tensor; an empty span leaves its tensor out. Unless
  // source() is kWhole, the memory must hold elements of the base or the target. Uses up to eight threads.
  // INVALID_ARGUMENT if the number of spans, or the size of a span, is wrong. After CANCELLED or
  // DEADLINE_EXCEEDED only some elements may be written; each written element has the target's value.
  absl::StatusOr<WrittenChanges> WriteTo(const RequestContext& context,
                                         std::span<const std::span<std::byte>> tensors) const;

  // Compares `tensors`, given as for WriteTo, with the digests of the target's manifest. Returns the indices,
  // in target.tensors(), of the tensors that differ. DATA_LOSS if the target's own memory does not match the
  // digests. Other errors are those of WriteTo.
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
