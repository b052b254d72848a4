// An object of a server as an ObjectReader: what all that is read over HTTP shares. How a range is asked for
// is the server's kind's own. Thread-safe, as the functions have to be.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "core/source/object_reader.h"
#include "objects/http/http_client.h"

namespace tensorcast::objects {

// Reads the range in the version that was opened, or fails as ObjectReader::Read does.
using ReadRange = std::function<absl::Status(const RequestContext&, const RangedRead&)>;

// The traits of what is read over a network: requests wait for answers more than for bytes, so several are
// under way, and each brings several MiB. `lane` outlives the reader: a literal.
ObjectTraits NetworkTraits(std::string_view lane);

// `etag`: of the version, for the ranges; empty where the server's replies have none that can be compared.
// `check`: whether the object is the same still, where the reads themselves do not show it; null: they do.
std::shared_ptr<ObjectReader> MakeRangedReader(
    ObjectIdentity identity, std::string etag, ObjectTraits traits, ReadRange read,
    std::function<absl::Status(const RequestContext&)> check = nullptr);

// INVALID_ARGUMENT unless `name` is a path below `folder`, without empty, "." and ".." components.
absl::Status CheckBelow(std::string_view folder, std::string_view name);

// FAILED_PRECONDITION unless `now` is what was opened before.
absl::Status CheckSameObject(const ObjectIdentity& before, const ObjectIdentity& now);

}  // namespace tensorcast::objects
