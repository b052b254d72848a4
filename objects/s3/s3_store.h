// Objects of S3-compatible buckets behind core/source's interfaces. URIs are "s3://bucket/key" with the key
// as it is, not encoded. What ends at a '/', a bucket, and a name below which something lies are folders.
// Thread-safe.
//
// The version of an object is "version:<VersionId>" where the bucket keeps versions: it can be read by name
// for as long as it is kept. Elsewhere it is "etag:<ETag>", and is gone with the next write.
#pragma once

#include <memory>

#include "core/source/object_reader.h"
#include "objects/s3/s3_client.h"

namespace tensorcast::objects {

std::unique_ptr<ObjectStore> MakeS3Store(std::shared_ptr<HttpClient> http, S3Options options);

}  // namespace tensorcast::objects
