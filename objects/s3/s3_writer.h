// Writes objects to S3-compatible buckets, lists and removes them, and ends uploads that a crash left behind.
//
// An object appears whole or not at all. A large object is uploaded in parts, several at a time. A write that
// fails or is cancelled aborts its upload, so that the store keeps no parts. Only a process that dies during
// a write leaves an unfinished upload: ListUploads finds it.
//
// Checksums: each signed request carries the SHA-256 of its body in x-amz-content-sha256, and the signature
// covers that header. A server that checks signatures compares the digest with the received body, so it
// refuses a damaged part, which the writer then sends again. The newer x-amz-checksum-* headers would only
// repeat the digest, and fewer kinds of servers know them. Requests without credentials carry no digest.
//
// Thread-safe. Errors are those of S3Client.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/request_context.h"
#include "core/artifact/origin.h"
#include "core/memory/host_pool.h"
#include "objects/s3/s3_client.h"

namespace tensorcast::objects {

// Fills `destination` with the object's bytes from `offset` on. Several threads call it at the same time. It
// is called again for a part that is sent again.
using FillBytes =
    std::function<absl::Status(const RequestContext& context, uint64_t offset, HostSpan destination)>;

struct StoredObject {
  std::string uri;
  uint64_t bytes = 0;
  absl::Time written;  // by the store's clock
};

// An upload that was neither finished nor aborted.
struct S3Upload {
  std::string uri;
  std::string id;
  absl::Time begun;  // by the store's clock
};

class S3Writer {
 public:
  struct Options {
    uint64_t part_bytes = uint64_t{16} << 20;  // larger if the object would have too many parts
    int parts_at_once = 4;                     // each part in flight needs a buffer of its size
    absl::Duration abort_timeout = absl::Seconds(20);
  };

  explicit S3Writer(std::shared_ptr<S3Client> client) : S3Writer(std::move(client), Options()) {}
  S3Writer(std::shared_ptr<S3Client> client, const Options& options)
      : client_(std::move(client)), options_(options) {}

  // Writes the object, and replaces an existing one. Returns the identity of the written version.
  absl::StatusOr<ObjectIdentity> Write(const RequestContext& context, const std::string& uri, uint64_t bytes,
                                       const FillBytes& fill) const;
  // NOT_FOUND when the object does not exist.
  absl::StatusOr<ObjectIdentity> Describe(const RequestContext& context, const std::string& uri) const;
  // OK also when the object does not exist.
  absl::Status Remove(const RequestContext& context, const std::string& uri) const;

  // All objects with URIs that begin with `prefix`, also those below further slashes; ascending.
  absl::StatusOr<std::vector<StoredObject>> List(const RequestContext& context,
                                                 const std::string& prefix) const;
  // All unfinished uploads to URIs that begin with `prefix`, also those of other processes.
  absl::StatusOr<std::vector<S3Upload>> ListUploads(const RequestContext& context,
                                                    const std::string& prefix) const;
  // OK also when the upload has ended already.
  absl::Status Abort(const RequestContext& context, const S3Upload& upload) const;

 private:
  class Parts;

  absl::Status Put(const RequestContext& context, const S3Name& name, uint64_t bytes,
                   const FillBytes& fill) const;
  absl::StatusOr<std::string> Begin(const RequestContext& context, const S3Name& name) const;
  // Returns the part's ETag.
  absl::StatusOr<std::string> SendPart(const RequestContext& context, const S3Name& name,
                                       const std::string& upload_id, size_t number,
                                       std::string_view bytes) const;
  absl::Status Finish(const RequestContext& context, const S3Name& name, const std::string& upload_id,
                      const std::vector<std::string>& etags) const;
  absl::Status Upload(const RequestContext& context, const S3Name& name, uint64_t bytes,
                      const FillBytes& fill) const;

  const std::shared_ptr<S3Client> client_;
  const Options options_;
};

}  // namespace tensorcast::objects
