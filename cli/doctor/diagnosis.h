// Everything that `tensorcast doctor` checks, and the checks of this host. Pure functions.
#pragma once

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

// Whether the daemon answers; where it does not, the folders in which one was looked for.
void CheckDaemon(const Facts& facts, FindingList& out);
// The room for packed artifacts.
void CheckDisk(const Facts& facts, FindingList& out);

FindingList Diagnose(const Facts& facts);

}  // namespace tensorcast::doctor
