#include "objects/archive_options.h"

#include "base/status.h"
#include "objects/open.h"
#include "objects/s3/s3_client.h"

namespace tensorcast::objects {

absl::StatusOr<Origins> ArchiveOptions::Parse(const Environment& environment) const {
  if (places.empty()) return Origins();
  for (const std::string& place : places) TC_RETURN_IF_ERROR(S3Name::Parse("s3", place).status());
  return Origins::Parse(places, ConfiguredEndpoints(environment));
}

void ArchiveOptions::Validate(Findings& findings) const {
  findings.Add("daemon.archives", Parse(ProcessEnvironment()).status());
}

}  // namespace tensorcast::objects
