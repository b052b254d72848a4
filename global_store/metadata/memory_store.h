// A metadata store that forgets everything with its process: for tests and for a daemon that works alone.
#pragma once

#include <memory>

#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

std::unique_ptr<MetadataStore> MakeMemoryStore();

}  // namespace tensorcast::global_store
