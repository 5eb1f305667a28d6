// The library `romou` (romou.h's Kotlin class, the runtime, the model as an asset) and an app that classifies a picture:
//   gradle :romou:assembleRelease     the AAR
//   gradle :app:installDebug          the app, on the attached phone
pluginManagement {
    repositories { google(); mavenCentral(); gradlePluginPortal() }
}
dependencyResolutionManagement {
    repositories { google(); mavenCentral() }
}
rootProject.name = "romou-sample"
include(":romou", ":app")
