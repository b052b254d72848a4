#include "global_store/metadata/metadata_store.h"

#include "absl/strings/str_cat.h"

namespace tensorcast::global_store {

absl::StatusOr<std::unique_ptr<MetadataStore>> OpenMetadataStore(std::string_view kind,
                                                                 const std::string& path) {
  if (kind == "memory") return MakeMemoryStore();
  if (kind == "sqlite") return OpenSqliteStore({.path = path});
  return absl::InvalidArgumentError(
      absl::StrCat("there is no metadata store \"", kind, "\": choose \"sqlite\" or \"memory\""));
}

}  // namespace tensorcast::global_store
