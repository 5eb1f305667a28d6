plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "dev.romou.sample"
    compileSdk = 34
    defaultConfig {
        minSdk = 24 // the runtime is built for it
        targetSdk = 34
        versionCode = 1
    }
    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_1_8
        targetCompatibility = JavaVersion.VERSION_1_8
    }
    kotlinOptions { jvmTarget = "1.8" }
}

dependencies {
    implementation(project(":romou"))
}
