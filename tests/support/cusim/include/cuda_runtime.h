// Included by every emitted source; nothing in it is used there.
#pragma once
